"""A process that gets too little memory, or no threads: one line that says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ggmlpy
from ggmlpy.cli import app, guard
from ggmlpy.common import limits
from ggmlpy.common.limits import importing, starting_threads
from ggmlpy.errors import AllocationError, BackendError
from tests.processes import no_start

with_limits = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("sh") is None, reason="only Linux keeps to `ulimit -v`"
)


def limited(n_kib: int, *command: object) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f'ulimit -v {n_kib}; exec "$@"', "sh", sys.executable, *map(str, command)]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@with_limits
@pytest.mark.parametrize("n_kib", [115_000, 125_000, 140_000, 200_000, 300_000])
def test_too_little_memory_is_one_line(n_kib: int, tiny: Path) -> None:
    """For Python packages, for those in C, for LLVM: wherever it ends here."""
    done = limited(n_kib, "-m", "ggmlpy", "generate", "-m", tiny, "-n", 1, "-q")
    assert done.returncode in (0, 1)
    if done.returncode:
        assert done.stderr.count("\n") == 1, done.stderr
        assert "rror: " in done.stderr  # of OpenBLAS, if it is not ours
        assert "memory" in done.stderr.lower()


@with_limits
def test_a_library_that_cannot_be_loaded_is_a_backend_error() -> None:
    code = (
        "import ggmlpy\n"
        "try: ggmlpy.get_backend('cpu'); print('there is enough')\n"
        "except ggmlpy.BackendError as error: print(error)"
    )
    said = limited(250_000, "-c", code).stdout
    assert said == "there is enough\n" or (
        said.startswith("the CPU backend cannot be loaded: ")
        and said.endswith(" (memory is likely too little: `ulimit -v` is 250000 KiB)\n")
    )


@pytest.mark.parametrize("kind", [ImportError, OSError, MemoryError, SystemError])
def test_what_cannot_be_imported_is_named_with_the_first_reason(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: None)
    with (
        pytest.raises(BackendError, match=r"^numbers cannot be loaded: no such luck$"),
        importing("numbers"),
    ):
        try:
            raise kind("no such luck")
        except kind as error:
            raise ImportError("read this\n\nand that") from error


def test_without_words_it_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: 3 << 20)
    text = r"^x cannot be loaded: not enough memory \(memory is .*: `ulimit -v` is 3072 KiB\)$"
    with pytest.raises(BackendError, match=text), importing("x"):
        raise MemoryError


@pytest.mark.parametrize("raised", [AllocationError, MemoryError])
def test_the_command_line_names_the_limit_that_memory_is_short_by(
    raised: type[MemoryError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*arguments: object) -> None:
        raise raised("64 bytes of memory cannot be had")

    monkeypatch.setattr(limits, "memory_limit", lambda: 3 << 20)
    monkeypatch.setattr(guard, "_invoked", no_memory)
    assert guard._exit_code(app, []) == guard.FAILED
    assert capsys.readouterr().err.endswith(
        "64 bytes of memory cannot be had (memory is likely too little: `ulimit -v` is 3072 KiB)\n"
    )


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), importing("x"):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="other"), starting_threads():
        raise RuntimeError("other")


def test_threads_that_cannot_be_started_are_a_backend_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `ulimit -u`, or where there is no memory for another stack."""
    with ggmlpy.Llama(tiny, backend="reference"):  # what it imports is there
        pass
    monkeypatch.setattr(threading.Thread, "start", no_start)
    with pytest.raises(BackendError, match="no thread can be started"):
        ggmlpy.Llama(tiny, backend="reference")
