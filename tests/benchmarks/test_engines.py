"""Engines in processes of their own: answers, failures and deaths, and whether they sleep."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.engines import EngineError, EngineProcess, in_turns
from benchmarks.worker import random_tokens
from tests.benchmarks.toys import ABOUT, CannedEngine, toy_command


def test_answers_and_what_is_printed_do_not_mix() -> None:
    body = ABOUT + (
        "    def prompt(self, n_tokens):\n"
        "        print('progress'); os.write(1, b'from a library'); return n_tokens / 2\n"
    )
    with EngineProcess("toy", toy_command(body)) as engine:
        assert engine.about == {"name": "toy", "version": "1"}
        assert [engine.prompt(n) for n in (3, 4)] == [1.5, 2.0]


def test_an_error_is_one_line_and_the_engine_goes_on() -> None:
    body = ABOUT + (
        "    def prompt(self, n_tokens):\n"
        "        if n_tokens > 5: raise ValueError('too long')\n"
        "        return 1.0\n"
    )
    with EngineProcess("toy", toy_command(body)) as engine:
        with pytest.raises(EngineError, match=r"^toy, prompt: ValueError: too long$"):
            engine.prompt(6)
        assert engine.prompt(5) == 1.0


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"ended by SIGKILL$"),
        ("os.kill(os.getpid(), signal.SIGILL)", r"SIGILL, an instruction that this CPU has not"),
        ("print('bad heap', file=sys.stderr); os._exit(3)", r"ended with 3; .* words: bad heap$"),
    ],
)
def test_a_death_is_told_with_its_cause(end: str, told: str) -> None:
    body = ABOUT + f"    def prompt(self, n_tokens): {end}\n"
    with (
        EngineProcess("toy", toy_command(body)) as engine,
        pytest.raises(EngineError, match=rf"^toy, prompt: its process .*{told}"),
    ):
        engine.prompt(1)


def test_engines_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"^llama.cpp: cannot run .*nowhere: No such file"):
        EngineProcess.peer(str(tmp_path / "nowhere"))
    with pytest.raises(EngineError, match=r"^llama.cpp: cannot run .*: Permission denied"):
        EngineProcess.peer(str(tmp_path))
    with pytest.raises(EngineError, match=r"^false, starting: its process ended with 1$"):
        EngineProcess("false", [sys.executable, "-c", "raise SystemExit(1)"])
    body = "    def __init__(self): import a_module_that_is_not_there\n"
    with pytest.raises(EngineError, match=r"^toy, starting: ModuleNotFoundError: No module named"):
        EngineProcess("toy", toy_command(body))


@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_that_does_not_sleep_is_found_out(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks are counters: a second passes between two questions, and the CPU time of a busy
    engine has gone on by a quarter of one."""
    body = ABOUT + (
        "    def prompt(self, n_tokens):\n"
        "        import itertools\n"
        "        time.process_time = itertools.count(1.0, n_tokens / 4).__next__\n"
        "        return 0.0\n"
    )
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    with EngineProcess("toy", toy_command(body)) as engine:
        engine.prompt(int(busy))
        engine.prompt(0)
        assert (engine.idle_share > 0.1) is busy


def test_engines_take_turns() -> None:
    log: list[tuple[object, ...]] = []
    both = [CannedEngine("a", 0.1, log), CannedEngine("b", 0.2, log)]
    results = in_turns(both, 3, lambda engine: engine.prompt(7))
    assert [entry[0] for entry in log] == ["a", "b"] * 3
    assert results == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_both_engines_get_the_same_tokens() -> None:
    tokens = random_tokens(100, 2, 3)
    assert tokens == random_tokens(100, 2, 3) == [[49, 97, 53], [5, 33, 65]]
    assert all(0 <= t < 7 for row in random_tokens(7, 5, 50) for t in row)


GROWN = """
from benchmarks.worker import peak_bytes

before = peak_bytes()
block = bytearray(64 * 2**20)
block[::4096] = b"\\x01" * len(block[::4096])
print(peak_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_the_peak_is_that_of_the_process() -> None:
    """In one of its own: an earlier peak of this one may lie above what is added here."""
    command, root = [sys.executable, "-c", GROWN], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert 48 * 2**20 < int(done.stdout) < 80 * 2**20
