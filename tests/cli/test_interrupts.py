"""Ctrl-C at any moment of a command: one line, exit status 130, and never a traceback.

A command runs in a process that counts its own calls and imports. At chosen ones it forks: the
child gets the signal there and goes its way, and the parent goes on to the next. So a moment is
the same one every time, and whatever a library does, it is hit in the middle of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggmlpy.__main__ import INTERRUPTED
from tests.processes import interruptible, running

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

DRIVER = """
import json, os, signal, sys, warnings
warnings.simplefilter("ignore")  # of forks in a process with threads
report, what, step, argv = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
n, outcomes = 0, []

def count():
    global n
    n += 1
    if n % step:
        return
    child = os.fork()
    if child == 0:
        sys.setprofile(None)
        sys.meta_path[:] = [f for f in sys.meta_path if f is not Importing]
        for stream in (1, 2):
            os.dup2(os.open(f"{report}.{n}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
        signal.raise_signal(signal.SIGINT)
        return
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(f"{report}.{n}.2", errors="replace") as stderr:
        outcomes.append((n, status, stderr.read()))
    for stream in (1, 2):
        os.unlink(f"{report}.{n}.{stream}")

class Importing:
    def find_spec(name, *more):
        count()

def calling(frame, event, arg):
    if event == "call":
        count()

from ggmlpy.__main__ import main
parent = os.getpid()
sys.argv = ["ggmlpy", *argv]
if what == "imports":
    sys.meta_path.insert(0, Importing)
else:
    sys.setprofile(calling)
try:
    main()
except SystemExit:
    if os.getpid() != parent:
        raise
sys.setprofile(None)
with open(report, "w") as file:
    json.dump([n, outcomes], file)
"""


@pytest.mark.parametrize(("what", "step"), [("imports", 5), ("calls", 10007)])
def test_wherever_it_comes(what: str, step: int, tiny: Path, tmp_path: Path) -> None:
    report, command = tmp_path / "report", [sys.executable, "-c", DRIVER]
    command += [str(report), what, str(step), "generate", "-m", str(tiny)]
    command += ["--backend", "reference", "-n", "2"]
    devnull = subprocess.DEVNULL
    with running(command, stdin=devnull, stdout=devnull, stderr=subprocess.PIPE) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err.decode()
    n, outcomes = json.loads(report.read_text())
    assert len(outcomes) == n // step > 15  # of 270,000 calls and 500 imports
    for moment, status, err in outcomes:
        assert status == INTERRUPTED, (moment, status, err)
        assert err.endswith("ggmlpy: stopped\n"), (moment, err)
        assert "Traceback" not in err, (moment, err)
        assert "Exception ignored" not in err, (moment, err)


def test_little_is_imported_before_the_handler() -> None:
    """What Python's start has not loaded, and is loaded while Ctrl-C still shows a traceback."""
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "class Importing:\n"
        "    def find_spec(name, *more):\n"
        "        if signal.getsignal(signal.SIGINT) is signal.default_int_handler: print(name)\n"
        "sys.meta_path.insert(0, Importing)\n"
        "sys.argv = ['ggmlpy']\n"
        "import ggmlpy.__main__"
    )
    with interruptible():
        command = [sys.executable, "-I", "-S", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ggmlpy", "__future__", "ggmlpy.errors", "ggmlpy.__main__"]


def test_inside_a_finalizer() -> None:
    """Python drops what is raised there; the interrupt comes again right after."""
    code = (
        "import click, signal, time; import ggmlpy.__main__ as entry, ggmlpy.cli as cli\n"
        "from ggmlpy.cli import guard\n"
        "def closed():\n"
        "    try: yield\n"
        "    finally: signal.raise_signal(signal.SIGINT)\n"
        "@click.command\n"
        "def command():\n"
        "    next(closed())\n"
        "    time.sleep(60)\n"
        "cli.main = lambda: guard.run(command, [])\n"
        "entry.main()"
    )
    with running([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (INTERRUPTED, b"ggmlpy: stopped\n")


@pytest.mark.parametrize("stdout", ["open", "reader gone", "closed"])
def test_output_written_before_is_not_lost(stdout: str) -> None:
    """Text in a buffer is written; where it cannot be, the process ends all the same."""
    code = (
        "import signal, sys; from ggmlpy.__main__ import main\n"
        "class Importing:\n"
        "    def find_spec(name, *more): signal.raise_signal(signal.SIGINT)\n"
        "print('before')\n"
        f"if {stdout == 'closed'}: sys.stdout.close()\n"
        "sys.meta_path.insert(0, Importing)\n"
        "main()"
    )
    reader, writer = os.pipe()
    if stdout == "reader gone":
        os.close(reader)
    command = [sys.executable, "-c", code]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with running(command, stdout=writer, stderr=subprocess.PIPE, env=buffered) as process:
        os.close(writer)
        _, err = process.communicate()
    assert (process.returncode, err) == (INTERRUPTED, b"ggmlpy: stopped\n")
    if stdout != "reader gone":
        with os.fdopen(reader, "rb") as output:
            assert output.read() == b"before\n"


def test_a_process_that_is_told_to_ignore_it_goes_on(tiny: Path) -> None:
    """As under nohup."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from ggmlpy.__main__ import main\n"
        f"sys.argv = ['ggmlpy', 'tokenize', {str(tiny)!r}, 'a']\n"
        "class Importing:\n"
        "    def find_spec(name, *more): signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Importing)\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_importing_the_package_leaves_signals_alone() -> None:
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT)\n"
        "import ggmlpy, ggmlpy.__main__, ggmlpy.cli\n"
        "assert ggmlpy.Llama\n"
        "assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler"
    )
    with interruptible():
        subprocess.run([sys.executable, "-c", code], check=True)
