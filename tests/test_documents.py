"""What README, CONTRIBUTING, docs/ and the examples show is true: their code and commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ggmlpy import MissingFile, packaged_model
from ggmlpy.cli import app
from tests.documents import DOCUMENTS, PYTHON, README, ROOT, label, text_of

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WITH_CODE = [path for path in DOCUMENTS if PYTHON.search(text_of(path))]
STORY = re.compile(r"## A first story\n\n```bash\n(.*?)\n```\n\n((?:>.*\n)+)")
SHOWN_COMMAND = re.compile(r"""ggmlpy ([a-z][a-z-]*)((?:'[^']*'|"[^"]*"|[^'"|<>()&\n])*)""")
COMMANDS = app.commands


@pytest.fixture(scope="module")
def model() -> None:
    """Documents run the packaged model."""
    try:
        packaged_model()
    except MissingFile as error:
        pytest.skip(str(error))


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def options_of(command: str) -> set[str]:
    return {name for p in COMMANDS[command].params for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.usefixtures("model")
def test_code_runs(tmp_path: Path) -> None:
    """In one process, because starting one takes longer than the code of a page."""
    assert run(tmp_path, "-m", "tests.documents")


def test_documents_have_code() -> None:
    """So that a change of the pattern that finds code does not leave all of it out."""
    assert README in WITH_CODE and len(WITH_CODE) >= 6


@pytest.mark.parametrize("path", DOCUMENTS, ids=label)
def test_all_python_code_is_marked_to_be_run(path: Path) -> None:
    assert not re.findall(r"^ *```(?:py|python3|pycon)\b.*", text_of(path), re.MULTILINE)
    assert len(re.findall(r"^ *```python", text_of(path), re.MULTILINE)) == len(
        PYTHON.findall(text_of(path))
    )


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    assert run(tmp_path, str(path))


@pytest.mark.usefixtures("model")
def test_the_story_is_what_its_command_tells(tmp_path: Path) -> None:
    shown = STORY.search(text_of(ROOT / "docs" / "getting-started.md"))
    assert shown is not None
    command = shown.group(1).removeprefix(".venv/bin/ggmlpy ").split()
    story = " ".join(line.removeprefix(">") for line in shown.group(2).splitlines())
    assert run(tmp_path, "-m", "ggmlpy", *command).split() == story.split()


@pytest.mark.parametrize("path", DOCUMENTS, ids=label)
def test_commands_have_the_options_that_are_shown(path: Path) -> None:
    blocks = "\n".join(re.findall(r"^```bash\n(.*?)^```", text_of(path), re.DOTALL | re.MULTILINE))
    for command, arguments in SHOWN_COMMAND.findall(blocks):
        assert command in COMMANDS, command
        shown = {a for a in shlex.split(arguments) if re.match(r"--?[a-z]", a)}
        assert shown <= options_of(command), f"{command} has no {shown - options_of(command)}"


def test_the_page_of_the_command_line_names_commands_and_options_that_are_there() -> None:
    text = text_of(ROOT / "docs" / "cli.md")
    own, _, rest = text.partition("\n## Flags of llama.cpp")  # these are no options of ours
    text = own + rest[rest.index("\n## ") :]
    first_table, _, _ = text.partition("\n## ")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", first_table, re.MULTILINE)) == set(COMMANDS)
    shown = set(re.findall(r"`(--?[a-z][\w-]*)`", text))
    assert shown <= {"--help"} | set().union(*map(options_of, COMMANDS))
