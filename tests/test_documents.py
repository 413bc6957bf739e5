"""What README, CONTRIBUTING and the examples show is true: their code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ggmlpy import MissingFile, packaged_model

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
STORY = re.compile(r"## A story\n\n```bash\n(.*?)\n```\n\n((?:>.*\n)+)")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def model() -> None:
    """Documents run the packaged model."""
    try:
        packaged_model()
    except MissingFile as error:
        pytest.skip(str(error))


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(CODE)))
def test_the_readmes_code_runs(number: int) -> None:
    assert run("-c", CODE[number])


def test_the_readme_has_code() -> None:
    assert len(CODE) >= 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path: Path) -> None:
    assert run(path)


def test_paths_that_documents_name_exist() -> None:
    for document in (README, CONTRIBUTING):
        names = re.findall(r"`((?:\w+/)+[\w.]*)`", document)
        assert names
        for name in names:
            assert (ROOT / name).exists(), name


def test_the_readmes_story_is_what_its_command_tells() -> None:
    shown = STORY.search(README)
    assert shown is not None
    command = shown.group(1).removeprefix(".venv/bin/ggmlpy ").split()
    story = " ".join(line.removeprefix(">") for line in shown.group(2).splitlines())
    assert run("-m", "ggmlpy", *command).split() == story.split()
