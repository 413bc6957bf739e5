"""The fuzzer itself, on planted faults: found, told apart, shrunk, saved, replayed."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.case import Case
from tests.fuzz.command import main
from tests.fuzz.kinds import KINDS
from tests.fuzz.shrink import shrink

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the fuzzer forks, and needs Linux's limits"
)
ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.planted", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def plant(folder: Path, kind: str, *steps: str) -> Path:
    return Case(kind, {"steps": [[step, 0] for step in steps]}).save(folder)


FAULTS = {
    "crash": "SIGSEGV",
    "hang": "time",
    "wait": "time",
    "hog": "MemoryError",
    "wrong": "sum differs",
    "warn": "RuntimeWarning",
    "fail": "ZeroDivisionError",
    "refuse_badly": "control characters",
}


def test_every_sort_of_fault_is_told(tmp_path: Path) -> None:
    paths = {fault: plant(tmp_path, "planted", "fine", fault, "fine") for fault in FAULTS}
    sound = [plant(tmp_path, "planted", "fine"), plant(tmp_path, "planted", "refuse")]
    done = fuzz("--replay", *paths.values(), *sound)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for line, (fault, what) in zip(lines, FAULTS.items(), strict=False):
        assert line.startswith(f"finding {paths[fault]}: {what} in tests/fuzz/planted.py:{fault}: ")
    assert [line.split()[:2] for line in lines[len(FAULTS) :]] == [
        ["ok", str(sound[0])],
        ["refused", f"{sound[1]}:"],
    ]


def test_findings_are_shrunk_saved_and_replayed(tmp_path: Path) -> None:
    arguments = ("--only", "faulty", "--cases", "12", "--jobs", "2", "--out", tmp_path)
    done = fuzz(*arguments)
    assert done.returncode == 1
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) >= 3
    for file in files:
        (step,) = json.loads(file.read_text())["recipe"]["steps"]
        assert step[0] != "fine"
        assert str(file) in done.stdout
    again = fuzz("--replay", tmp_path)
    assert again.returncode == 1
    assert again.stdout.count("finding ") == len(files)
    before = {file.name: file.read_bytes() for file in files}
    fuzz(*arguments)
    assert {file.name: file.read_bytes() for file in tmp_path.rglob("*.json")} == before


def test_a_finding_that_takes_several_cases_is_kept_with_them(tmp_path: Path) -> None:
    """Each alone is sound; the second fails after the first."""
    done = fuzz("--only", "paired", "--cases", "2", "--jobs", "1", "--out", tmp_path)
    (file,) = tmp_path.rglob("*.json")
    assert len(json.loads(file.read_text())["recipe"]["several"]) == 2
    assert "second time" in done.stdout
    assert fuzz("--replay", file).returncode == 1


def test_a_run_without_findings_ends_with_0(tmp_path: Path) -> None:
    done = fuzz("--only", "planted", "--cases", "10", "--jobs", "1", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
    assert re.search(r"\bplanted +│ +10 │ +10 │ +0 │ +0 │", done.stdout), done.stdout


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--only", "x"], ["--replay", "none"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(KINDS, arguments)
    assert exit.value.code == 2


def test_shrinking_keeps_what_it_takes() -> None:
    rng = random.Random(1)
    steps = [["do", rng.randrange(1000), "x" * 50] for _ in range(40)]
    steps[7][1], steps[30][1] = 777, 888

    def fails(recipe: dict[str, object]) -> bool:
        numbers = [step[1] for step in recipe["steps"]]  # type: ignore[attr-defined]
        return 777 in numbers and 888 in numbers

    assert shrink({"steps": steps}, ["steps"], fails, n_tries=1000) == {
        "steps": [["do", 777, "x" * 6], ["do", 888, "x" * 6]]
    }
