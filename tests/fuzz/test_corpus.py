"""Every saved case once more: none may be a finding."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(CORPUS.rglob("*.json"))

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the fuzzer forks, and needs Linux's limits"
)


@cache
def replayed(kind: str) -> dict[str, str]:
    """What came of the cases of a kind, by file: a line each. They run in one go."""
    command = [sys.executable, "-m", "tests.fuzz", "--replay", str(CORPUS / kind)]
    root = CORPUS.parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {line.split()[1].removesuffix(":"): line for line in done.stdout.splitlines()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_saved_case(file: Path) -> None:
    line = replayed(file.parent.name)[str(file)]
    assert line.split()[0] in ("ok", "refused"), line
