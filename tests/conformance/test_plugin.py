"""The pytest plug-in, as a backend's author runs it: in another folder, by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not any(entry.value == "ggmlpy.conformance.plugin" for entry in entry_points(group="pytest11")),
    reason="the installed package has no entry point yet: run `pip install -e .` again",
)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_suite_alone_and_after_other_tests(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine() -> None:\n    pass\n")
    options = ["--ggmlpy-backend=reference", "--ggmlpy-op=roll", "--ggmlpy-op=tri"]
    code, out = run(tmp_path, *options)
    assert code == 0, out
    alone = int(out.splitlines()[-1].split()[0])
    code, out = run(tmp_path, *options, "test_mine.py")
    assert code == 0, out
    assert int(out.splitlines()[-1].split()[0]) == alone + 1 > 10


def test_skips_are_counted(tmp_path: Path) -> None:
    options = ["--ggmlpy-backend=cpu", "--ggmlpy-op=map_custom1"]
    assert run(tmp_path, *options, "--ggmlpy-skips=3")[0] == 0
    code, out = run(tmp_path, *options, "--ggmlpy-skips=0")
    assert code == 1
    assert "3 tests of the suite were skipped, --ggmlpy-skips says 0" in out


def test_an_unknown_backend_is_one_line(tmp_path: Path) -> None:
    code, out = run(tmp_path, "--ggmlpy-backend=nope")
    assert code == 4
    assert "no backend 'nope'; there are cpu" in out


def test_nothing_changes_without_the_option(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine() -> None:\n    pass\n")
    assert run(tmp_path)[1].splitlines()[-1].startswith("1 passed")
