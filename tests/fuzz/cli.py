"""The command line with arguments by chance: an exit status that says how it went, and a line.

A command runs in the child itself, with files for its streams, as `ggmlpy …` would.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ggmlpy.cli import app, main
from tests.fuzz import values
from tests.fuzz.case import Kind, Limits, Recipe, Wrong
from tests.fuzz.gguf_base import sources
from tests.fuzz.kernels import load_kernels
from tests.models.tiny import Tiny, write_model

_OK, _FAILED, _USAGE, _READER_GONE = 0, 1, 2, 141
_FILES = (
    "tiny.gguf",
    "tiny.gguf",
    "tiny.gguf",
    "bpe.gguf",
    "cut.gguf",
    "text.txt",
    "folder",
    "missing.gguf",
    "big.gguf",
    "empty",
    "-",
    "",
    ".",
    "/dev/null",
    "a\nb.gguf",
    "é\udcff",
)
_SMALL = ("1", "2", "3", "0", "-1", "x", "", "1.5")
_WHOLE = (
    "0",
    "1",
    "2",
    "4",
    "16",
    "64",
    "-1",
    "1000000",
    str(2**31),
    str(2**63),
    str(2**70),
    "1e3",
    "0x10",
    " 3",
    "nan",
    "",
    "x",
    "-0",
    "1_000",
)
_REAL = ("0", "1", "0.5", "0.95", "2", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "", "x")
_ALWAYS = ("model", "n_predict", "prompts", "generated", "n_repeat", "sequences")  # else they last
_NEEDED = ("ops",)  # of the thousands of tests a few
_FEW = ("n_predict", "n_repeat", "n_tokens", "n_past", "n_graphs")
_BY_NAME = {
    "backend": ("cpu", "cpu", "reference", "null", "auto", "cuda", "", "x"),
    "output": ("out.txt", "folder", "missing/out", "/dev/full", "", "md", "json", "jsonl", "csv",
               "sql"),
    "format": ("text", "dot", "json", "html", "x", ""),
    "threads": ("1", "2", "1,2", "0", "1-3", "999999", "x", "2-1", "1-9*2", ""),
}  # fmt: skip
_BY_METAVAR = {
    "FILE": _FILES,
    "N,N…": ("1", "2", "1,2", "1-3", "1-4*2", "0", "-1", "x", "", ",", "3-1", "1-99999999999",
             "1-5+0", "1-5*1", "1,,2"),
    "PP,TG": ("2,2", "1,1", "2", "2,0", "x", "2,2,2", ""),
    "TYPE": ("f16", "f32", "bf16", "q8_0", "q4_0", "q9_9", "q4_K", "", "F16"),
    "A B": ("cpu", "reference", "null", "x", ""),
    "GLOB": ("add", "argmax", "diag*", "x", "["),
    "MODE": ("test", "perf", "support", "x", ""),
    "FORMAT": ("md", "json", "jsonl", "csv", "sql", "x", ""),
    "A:B": ("0:1", "1:", ":", "9:1", "-1:", "x", "", "0:99999999999"),
    "on|off|auto": ("on", "off", "auto", "1", "0", "x", ""),
    "REGEX": (".", "rope|head", "(", "[", "*", "\\", "tokenizer", "(a+)+$"),
    "N": _WHOLE,
    "T": _REAL,
    "P": _REAL,
    "X": _REAL,
    "K": _WHOLE,
}  # fmt: skip
_STREAMS = ("file", "file", "file", "file", "full", "closed", "gone")


class Cli(Kind):
    """One command."""

    name = "cli"
    about = "commands with any arguments: their exit status, and what they show"
    n_quick = 200
    group = 8
    limits = Limits(cpu_s=30, wall_s=120.0)
    parts = ("words",)
    _files: Path
    _commands: dict[str, list[Any]]

    def prepare(self, folder: Path) -> None:
        load_kernels()
        self._files = folder
        _write_files(folder)
        self._commands = _parameters()

    def draw(self, rng: random.Random) -> Recipe:
        name = rng.choice(list(self._commands))
        words = [name]
        for parameter in self._commands[name]:
            likely = 0.95 if parameter.param_type_name == "argument" else 0.12
            if parameter.name in _ALWAYS:
                likely = 0.97
            if parameter.name in _NEEDED:
                likely = 1
            if rng.random() < likely:
                words += _words(rng, parameter)
        if rng.random() < 0.1:
            words.insert(
                rng.randint(0, len(words)), rng.choice(("--nonsense", "-", "--", "x", "-h"))
            )
        stdin = rng.choice((None, None, "", "Hello\n", "a\0b", "\udcff", "/help\nhi\n/quit\n"))
        return {"words": words, "stdin": stdin, "stdout": rng.choice(_STREAMS)}

    def run(self, recipe: Recipe, folder: Path) -> None:
        for file in self._files.iterdir():
            (folder / file.name).symlink_to(file)
        code, out, err = _run(recipe, folder)
        _check(recipe, code, out, err)

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        yield recipe | {"stdin": None}
        yield recipe | {"stdout": "file"}


def _write_files(folder: Path) -> None:
    tiny = write_model(folder / "tiny.gguf", Tiny()).read_bytes()
    (folder / "cut.gguf").write_bytes(tiny[: len(tiny) // 2])
    (folder / "bpe.gguf").write_bytes(sources("llama-bpe")[0].encode())
    (folder / "big.gguf").write_bytes(sources("llama-big-endian")[0].encode())
    (folder / "text.txt").write_text("Hello\nworld\n")
    (folder / "a\nb.gguf").write_bytes(tiny)
    (folder / "empty").touch()
    (folder / "folder").mkdir()


def _parameters() -> dict[str, list[Any]]:
    """The parameters of each command."""
    return {name: list(command.params) for name, command in app.commands.items()}


def _words(rng: random.Random, parameter: Any) -> list[str]:
    """A parameter as it is written, with some value."""
    value = _value(rng, parameter)
    if parameter.param_type_name == "argument":
        return [value]
    name = rng.choice([*parameter.opts, *parameter.secondary_opts])
    if parameter.nargs == 2:
        return [name, value, _value(rng, parameter)]
    if parameter.is_flag and rng.random() < 0.95:
        return [name]
    return [f"{name}={value}"] if rng.random() < 0.2 else [name, value]


def _value(rng: random.Random, parameter: Any) -> str:
    name, metavar = parameter.name, parameter.metavar
    if name in _FEW:
        return rng.choice(_SMALL)
    known = _BY_NAME.get(name) or _BY_METAVAR.get(metavar)
    if known:
        return rng.choice(known)
    return rng.choice((values.text(rng).replace("\0", ""), "Hello", "1 2 3", "70", "a b"))


def _run(recipe: Recipe, folder: Path) -> tuple[int, str, str]:
    """Run the command; what it says on stdout and stderr."""
    out, err, given = folder / "stdout.out", folder / "stderr.out", folder / "stdin.in"
    given.write_bytes((recipe["stdin"] or "").encode("utf-8", "surrogateescape"))
    stdin = os.devnull if recipe["stdin"] is None else str(given)
    kept = [os.dup(i) for i in range(3)]
    here = Path.cwd()
    streams = sys.stdin, sys.stdout, sys.stderr
    os.chdir(folder)
    try:
        _open(0, stdin, os.O_RDONLY)
        _open_stdout(recipe["stdout"], out)
        _open(2, str(err), os.O_WRONLY | os.O_CREAT)
        sys.stdin, sys.stdout, sys.stderr = _streams()
        code = _exit_code(lambda: main(list(recipe["words"])))
        code = _flushed(code)
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for i, descriptor in enumerate(kept):
            os.dup2(descriptor, i)
            os.close(descriptor)
        os.chdir(here)
    shown = [p.read_bytes().decode(errors="replace") if p.exists() else "" for p in (out, err)]
    return code, shown[0], shown[1]


def _open(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags)
    os.dup2(opened, descriptor)
    os.close(opened)


def _open_stdout(what: str, path: Path) -> None:
    if what == "closed":
        os.close(1)
    elif what == "gone":
        end, begin = os.pipe()
        os.close(end)
        os.dup2(begin, 1)
        os.close(begin)
    else:
        _open(1, "/dev/full" if what == "full" else str(path), os.O_WRONLY | os.O_CREAT)


def _streams() -> list[Any]:
    """As Python makes them at its start: None for what is closed."""
    made: list[Any] = []
    for i, mode in enumerate("rww"):
        try:
            errors = "backslashreplace" if i == 2 else "surrogateescape"
            own = fcntl.fcntl(i, fcntl.F_DUPFD, 10)  # never one of 0 to 2 that is closed
            made.append(open(own, mode, encoding="utf-8", errors=errors))  # noqa: SIM115, PTH123
        except OSError:
            made.append(None)
    return made


def _exit_code(call: Callable[[], object]) -> int:
    try:
        call()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    return 0


def _flushed(code: int) -> int:
    """What Python does at its end; a stream that fails then spoils the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.close()
        except OSError:
            code = code or 120
    return code


def _check(recipe: Recipe, code: int, out: str, err: str) -> None:
    odd = {c for c in err if unicodedata.category(c) == "Cc"} - {"\n"}
    if odd:
        raise Wrong("control characters", f"stderr: {err[:300]!r}")
    if "Traceback" in err:
        raise Wrong("traceback", err[-300:])
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("ggmlpy: error: ")]
    if code == _OK:
        if errors:
            raise Wrong("error with status 0", errors[0])
        _check_json(recipe, out)
    elif code in (_FAILED, _USAGE):
        if lines and (len(errors) != 1 or lines[-1] != errors[0]):
            raise Wrong("not one line of error", err[-300:])
        if code == _USAGE and lines and not lines[-1].endswith("--help`)"):
            raise Wrong("usage without help", lines[-1])
        if code == _FAILED and not lines:
            raise Wrong("failed in silence", str(recipe["words"]))
    elif code != _READER_GONE or recipe["stdout"] != "gone":
        raise Wrong("exit status", str(code))


def _check_json(recipe: Recipe, out: str) -> None:
    words = recipe["words"]
    if "--json" not in words or {"-h", "--help"} & set(words) or recipe["stdout"] != "file":
        return
    for line in out.splitlines():
        try:
            json.loads(line)
        except ValueError:
            raise Wrong("no JSON", line[:200]) from None
