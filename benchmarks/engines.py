"""Engines in processes of their own: while one of them is measured, the others sleep.

with EngineProcess.ours() as a, EngineProcess.peer(python) as b:
    for seconds in in_turns([a, b], 3, lambda engine: engine.prompt(512)): …
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
OPENVINO = "OpenVINO"  # as an engine's name
T = TypeVar("T")


class EngineError(Exception):
    """An engine that does not start, fails, or dies; the message says which and why."""


class EngineProcess:
    """A worker and its answers. Use it in a `with` statement: the process ends with it."""

    def __init__(self, name: str, command: Sequence[str], **environment: str) -> None:
        """Start it and wait for its first answer. Raises EngineError."""
        self.name = name
        self._idle_cpu_s = self._idle_s = 0.0
        self._last_cpu_s: float | None = None  # and when that was:
        self._answered_at = 0.0
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=ROOT,
                env={**os.environ, **environment},
                text=True,
                start_new_session=True,  # an interrupt is for the benchmark, which ends its workers
            )
        except OSError as error:
            self._stderr.close()
            raise EngineError(f"{name}: cannot run {command[0]}: {error.strerror}") from None
        try:
            self.about: dict[str, str] = self._answer("starting")
        except EngineError:
            self.close()
            raise

    @classmethod
    def ours(cls, backend: str = "cpu") -> EngineProcess:
        command = [sys.executable, "-m", "benchmarks.ours"]
        return cls("ggmlpy", command, GGMLPY_BENCHMARK_BACKEND=backend)

    @classmethod
    def peer(cls, python: str) -> EngineProcess:
        """`python` is an interpreter that has llama-cpp-python."""
        return cls("llama.cpp", [_found(python), "-m", "benchmarks.peer"])

    @classmethod
    def openvino(cls, python: str) -> EngineProcess:
        """`python` is an interpreter that has openvino-genai."""
        return cls(OPENVINO, [_found(python), "-m", "benchmarks.openvino_peer"])

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    @property
    def idle_share(self) -> float:
        """The share of a core that the process used while others were measured."""
        return self._idle_cpu_s / self._idle_s if self._idle_s else 0.0

    # --- what an engine does: see worker.Engine ---

    def load(self, path: Path, n_threads: int) -> float:
        seconds: float = self._call("load", path=str(path.resolve()), n_threads=n_threads)
        return seconds

    def first_token(self, path: Path, n_threads: int, n_ctx: int) -> float:
        seconds: float = self._call(
            "first_token", path=str(path.resolve()), n_threads=n_threads, n_ctx=n_ctx
        )
        return seconds

    def open(
        self,
        n_ctx: int,
        n_seq_max: int = 1,
        layout: str = "split",
        type_k: str = "f16",
        type_v: str = "f16",
    ) -> float:
        seconds: float = self._call(
            "open",
            n_ctx=n_ctx,
            n_seq_max=n_seq_max,
            layout=layout,
            type_k=type_k,
            type_v=type_v,
        )
        return seconds

    def prepare(self, depths: Sequence[int]) -> None:
        self._call("prepare", depths=list(depths))

    def prompt(self, n_tokens: int) -> float:
        seconds: float = self._call("prompt", n_tokens=n_tokens)
        return seconds

    def decode(
        self,
        n_seqs: int,
        n_steps: int,
        *,
        depth: int = 0,
        n_warm: int = 0,
        interleaved: bool = False,
    ) -> list[float]:
        seconds: list[float] = self._call(
            "decode",
            n_seqs=n_seqs,
            n_steps=n_steps,
            depth=depth,
            n_warm=n_warm,
            interleaved=interleaved,
        )
        return seconds

    def logits(self) -> bytes:
        return bytes.fromhex(self._call("logits"))

    def resident_bytes(self) -> dict[str, int]:
        parts: dict[str, int] = self._call("resident_bytes")
        return parts

    def step_bytes(self, n_seqs: int, n_tokens: int) -> int:
        """ggmlpy only: it counts for both."""
        n_bytes: int = self._call("step_bytes", n_seqs=n_seqs, n_tokens=n_tokens)
        return n_bytes

    # --- the line ---

    def _call(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death(do) from None
        return self._answer(do)

    def _answer(self, doing: str) -> Any:
        assert self._process.stdout is not None
        asked_at = time.perf_counter()
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._death(doing)
        answer = json.loads(line)
        self._count_idle(asked_at, *answer["cpu_s"])
        if "error" in answer:
            raise EngineError(f"{self.name}, {doing}: {answer['error']}")
        return answer["value"]

    def _count_idle(self, asked_at: float, began_cpu_s: float, ended_cpu_s: float) -> None:
        if self._last_cpu_s is not None:
            self._idle_cpu_s += began_cpu_s - self._last_cpu_s
            self._idle_s += asked_at - self._answered_at
        self._last_cpu_s = ended_cpu_s
        self._answered_at = time.perf_counter()

    def _death(self, doing: str) -> EngineError:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        if code == -signal.SIGILL:
            how += ", an instruction that this CPU has not: build it for this machine"
        said = f"; its last words: {lines[-1]}" if lines else ""
        return EngineError(f"{self.name}, {doing}: its process {how}{said}")


def _found(python: str) -> str:
    """Where an interpreter is: workers run in another folder."""
    found = shutil.which(python)
    return str(Path(found).absolute()) if found else python


def in_turns(
    engines: Sequence[EngineProcess], n_repeat: int, measure: Callable[[EngineProcess], T]
) -> dict[str, list[T]]:
    """`n_repeat` measurements of each engine by its name: A, B, A, B, …"""
    results: dict[str, list[T]] = {engine.name: [] for engine in engines}
    for _ in range(n_repeat):
        for engine in engines:
            results[engine.name].append(measure(engine))
    return results
