"""-md, --spec-type and the options of drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy import packaged_model
from tests.cli.conftest import Run
from tests.models.tiny import Tiny, write_model

FIXED = ("-p", "Tom had a ball. Tom had a ball. Tom", "-n", 90, "--temp", 0)


@pytest.mark.parametrize(
    "options",
    [
        ["-md", packaged_model(), "--draft-p-min", 0],
        ["--model-draft", packaged_model(), "--draft-max", 3, "--draft-p-min", 0, "-ngld", 0],
        ["--spec-type", "ngram-simple"],
        ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 1],
    ],
)
def test_the_text_is_the_same(run: Run, options: list[object]) -> None:
    plain, drafted = run("generate", *FIXED, "--json"), run("generate", *FIXED, "--json", *options)
    assert drafted.code == 0, drafted
    before, after = json.loads(plain.out), json.loads(drafted.out)
    assert after["tokens"] == before["tokens"]
    assert after["timings"]["n_drafted"] > before["timings"]["n_drafted"] == 0
    assert after["timings"]["n_accepted"] == after["timings"]["n_drafted"] or "-md" not in options


def test_the_line_of_the_speed(run: Run) -> None:
    own = ["-md", packaged_model(), "--draft-p-min", 0]
    for command, more in (("generate", {}), ("chat", {"stdin": "Hello!\n"})):
        args = FIXED if command == "generate" else ("-n", 90, "--temp", 0)
        assert "drafted" not in run(command, *args, **more).err
        err = run(command, *args, *own, **more).err
        assert "drafted tokens accepted (100%)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spec-type", "draft-simple"], "--spec-type draft-simple needs a draft model: -md FILE"),
        (
            ["--spec-type", "ngram-simple", "-md", packaged_model()],
            "-md and --spec-type ngram-simple cannot be used together",
        ),
    ],
)
def test_wrong_options(run: Run, options: list[object], message: str) -> None:
    assert run("generate", *FIXED, *options).usage_error == message


def test_wrong_values(run: Run, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", Tiny())
    found = run("generate", *FIXED, "-md", other)
    assert found.error.startswith("other.gguf cannot be the draft model: its vocabulary has 288")
    found = run("generate", *FIXED, "-md", tmp_path / "none.gguf")
    assert found.error == f"none.gguf: there is no such file in {tmp_path}"
    found = run("generate", *FIXED, "-md", other, "--draft-p-min", 2)
    assert found.error == "p_min is 2.0: it must be in 0 .. 1"
