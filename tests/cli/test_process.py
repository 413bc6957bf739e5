"""What only a process of its own can show: exit codes, signals, pipes, encodings, import time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import run_process, start, write_endless
from tests.gguf_builder import build_gguf
from tests.models.tiny import Tiny
from tests.processes import Process

ENDLESS = ("--backend", "reference", "-n", "-1", "-c", "100000", "-p", "ab", "--temp", "3")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_endless(tmp_path_factory.mktemp("process") / "endless.gguf", Tiny())


def finish(process: Process) -> tuple[bytes, str]:
    out, err = process.communicate()
    return out, err.decode()


def test_exit_codes(tiny: Path, tmp_path: Path) -> None:
    assert run_process("inspect", tiny).code == 0
    assert run_process("inspect", tmp_path / "none.gguf").error.startswith("none.gguf: there is no")
    assert "No such option" in run_process("inspect", tiny, "--nonsense").usage_error


def test_a_bug_keeps_its_traceback(tiny: Path) -> None:
    code = (
        "import ggmlpy.gguf.file as f, ggmlpy.cli as c, sys\n"
        "f._read_header = lambda cursor: 1 / 0\n"
        f"sys.argv = ['ggmlpy', 'inspect', {str(tiny)!r}]\n"
        "c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"Traceback (most recent call last)" in done.stderr
    assert b"ZeroDivisionError" in done.stderr


def test_ctrl_c_ends_with_130_and_no_traceback(endless: Path) -> None:
    with start("generate", "-m", endless, *ENDLESS, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(10)  # it is writing
        process.send_signal(signal.SIGINT)
        rest, err = finish(process)
    assert process.returncode == 130
    warning, stopped = err.splitlines()
    assert warning.startswith("ggmlpy: warning: n_ctx is 100000")
    assert stopped == "ggmlpy: stopped"
    assert first.startswith(b"ab")
    assert rest.endswith(b"\n")


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "-p", "1", "-n", "100000"),
        ("batched-bench", "-npp", "1", "-ntg", "1,100000", "-npl", "1"),
    ],
)
def test_ctrl_c_ends_a_benchmark_with_a_line(endless: Path, command: tuple[str, ...]) -> None:
    args = (*command, "-m", endless, "--backend", "reference")
    with start(*args, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()  # the table's head and its first row: it is measuring
        process.send_signal(signal.SIGINT)
        _, err = finish(process)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "ggmlpy: stopped"
    assert "Traceback" not in err


def test_a_reader_that_goes_ends_it_quietly(endless: Path) -> None:
    with start("generate", "-m", endless, *ENDLESS, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait() == 141
    assert err.count("\n") == 1, err
    assert err.startswith("ggmlpy: warning: n_ctx is 100000")


def test_a_reader_that_is_gone_before_the_first_byte(tiny: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with start("inspect", tiny, stdin=subprocess.DEVNULL, stdout=write_end) as process:
        os.close(write_end)
        _, err = finish(process)
    assert (process.returncode, err) == (141, "")


def test_stdin_is_the_prompt_where_it_is_a_pipe_or_a_file(tiny: Path, tmp_path: Path) -> None:
    command = ("generate", "-m", tiny, "--backend", "reference", "-n", "3", "--temp", "0", "-q")
    piped = run_process(*command, input="ä b\n".encode())
    assert piped.out.startswith("ä b")
    file = tmp_path / "prompt.txt"
    file.write_text("ä b\n", encoding="utf-8")
    with file.open("rb") as stdin, start(*command, stdin=stdin) as process:
        out, _ = finish(process)
    assert out.decode(errors="replace") == piped.out
    assert run_process(*command).out == run_process(*command, "-p", "").out  # an empty pipe
    with start(*command, stdin=subprocess.DEVNULL) as process:
        out, _ = finish(process)
    assert out.startswith(b"Once upon a time")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_that_lack_characters_get_question_marks(encoding: str, tmp_path: Path) -> None:
    path = build_gguf(
        tmp_path / "m.gguf", {"general.architecture": "llama", "odd": "▁ß", "bytes": b"\xff"}
    )
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = run_process("inspect", path, env=env)
    assert done.code == 0, done.err
    assert '"?' in done.out
    assert run_process("--help", env=env).code == 0
    assert run_process("generate", "-m", tmp_path / "ß▁.gguf", env=env).error.endswith(
        f"there is no such file in {tmp_path}"
    )


def test_help_is_quick_and_loads_no_compiler() -> None:
    code = (
        "import sys\n"
        "import ggmlpy\n"
        "assert not {'numpy', 'rich', 'click'} & set(sys.modules), 'import is heavy'\n"
        "import ggmlpy.cli\n"
        "heavy = {'numba', 'llvmlite', 'ggmlpy.llama', 'jinja2', 'cupy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_version_and_help() -> None:
    version = run_process("--version")
    assert version.code == 0
    assert version.out.startswith("ggmlpy ")
    help = run_process("--help")
    assert help.code == 0
    assert all(name in help.out for name in ("generate", "chat", "inspect", "tokenize", "graph"))
    assert run_process("-h").out == help.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line(tiny: Path) -> None:
    args = ("tokenize", tiny, "a")
    with (
        Path("/dev/full").open("wb") as full,
        start(*args, stdin=subprocess.DEVNULL, stdout=full) as process,
    ):
        _, err = finish(process)
    message = "ggmlpy: error: the output cannot be written: No space left on device\n"
    assert (process.returncode, err) == (1, message)


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_streams_that_are_closed(tiny: Path) -> None:
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        command = f'exec "$@" {closed}'
        words = [sys.executable, "-m", "ggmlpy", "tokenize", str(tiny), "a"]
        done = subprocess.run(["sh", "-c", command, "sh", *words], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed
