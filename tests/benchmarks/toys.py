"""Engines for tests: one in a process that does what it is told, and one that only answers."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.engines import EngineProcess

# A worker's program: `{body}` is that of the class's methods.
_PROGRAM = """
import os, signal, sys, threading, time
from benchmarks.worker import serve
class Toy:
{body}
serve(Toy)
"""
ABOUT = "    def about(self): return {'name': 'toy', 'version': '1'}\n"


def toy_command(body: str) -> list[str]:
    """A worker whose engine has these methods."""
    return [sys.executable, "-c", _PROGRAM.format(body=body)]


class CannedEngine(EngineProcess):
    """Answers at once, and notes what it is asked. A step takes `step_s`, a prompt a second."""

    def __init__(self, name: str, step_s: float, log: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.about = {"name": name, "version": "0", "build": ""}
        self.step_s = step_s
        self.log = log
        self.said = b"\x00\x00\x80\x3f" * 4  # 1.0, four times
        self._idle_cpu_s, self._idle_s = 0.0, 1.0

    def close(self) -> None:
        self.log.append((self.name, "close"))

    def _call(self, do: str, **arguments: Any) -> Any:
        self.log.append((self.name, do, arguments))
        return getattr(self, f"_{do}")(**arguments)

    def _load(self, path: str, n_threads: int) -> float:
        return 0.25

    def _first_token(self, **_: Any) -> float:
        return 0.5

    def _open(self, **_: Any) -> float:
        return 0.25

    def _prepare(self, depths: list[int]) -> None:
        pass

    def _prompt(self, n_tokens: int) -> float:
        return 1.0

    def _decode(self, n_steps: int, **_: Any) -> list[float]:
        return [self.step_s] * n_steps

    def _logits(self) -> str:
        return self.said.hex()

    def _resident_bytes(self) -> dict[str, int]:
        return {"peak": 3 * 10**6, "cache": 2000, "compute": 3000}

    def _step_bytes(self, n_seqs: int, n_tokens: int) -> int:
        return 1000 + n_seqs * n_tokens
