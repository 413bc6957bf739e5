"""Running commands: in this process for speed, or as a process of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.backends.cpu.choose import choose
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.cli import main
from tests.models.tiny import Tiny, byte_vocabulary, write_model
from tests.processes import Process, running


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def usage_error(self) -> str:
        """The message of a wrong command line: one line that says where there is help."""
        assert self.code == 2, self
        message, newline, rest = self._message.rpartition(" (see `ggmlpy ")
        assert newline and rest.endswith("--help`)"), self.err
        return message

    @property
    def error(self) -> str:
        """The message of a file or value that cannot be used."""
        assert self.code == 1, self
        return self._message

    @property
    def _message(self) -> str:
        """The one line that is all of stderr."""
        head, newline, rest = self.err.partition("\n")
        assert (newline, rest) == ("\n", ""), self.err
        assert head.startswith("ggmlpy: error: "), self.err
        return head.removeprefix("ggmlpy: error: ")


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colours, whatever the environment asks for."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _compiled_sampler() -> None:
    """No command has to say that it compiles what each of them uses."""
    shared_jit(select()).address(choose)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("inspect", path, stdin=...)`: the command in this process.

    An exception that should have become a message fails the test with its traceback.
    """

    def run_command(*args: Any, stdin: str | bytes | None = None) -> Outcome:
        raw = stdin.encode() if isinstance(stdin, str) else stdin or b""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        code = exit.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run_command


def start(
    *args: Any,
    stdin: Any = subprocess.PIPE,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    env: dict[str, str] | None = None,
) -> AbstractContextManager[Process]:
    """`python -m ggmlpy …` as a process of its own, for a `with` statement."""
    command = [sys.executable, "-m", "ggmlpy", *map(str, args)]
    environment = {**os.environ, "PYTHONUTF8": "1"} | (env or {})
    return running(command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)


def run_process(*args: Any, input: bytes = b"", env: dict[str, str] | None = None) -> Outcome:
    """`python -m ggmlpy …`, to its end."""
    with start(*args, env=env) as process:
        out, err = (text.decode(errors="replace") for text in process.communicate(input))
    return Outcome(process.returncode, out, err)


def write_endless(path: Path, m: Tiny, **changes: Any) -> Path:
    """A model that never ends a text by itself: its vocabulary has no token for that."""
    tokens = byte_vocabulary(m.n_vocab)["tokenizer.ggml.tokens"]
    changes["tokenizer__ggml__tokens"] = ["<x>" if t == "</s>" else t for t in tokens]
    return write_model(path, m, tokenizer__ggml__eos_token_id=0xFFFF_FFFF, **changes)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama model of two layers, with a vocabulary of bytes and a context of 128."""
    return write_model(tmp_path_factory.mktemp("cli") / "tiny.gguf", Tiny())
