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
    ("options", "all_accepted"),
    [
        (["-md", packaged_model(), "--draft-p-min", 0], True),
        (
            ["--model-draft", packaged_model(), "--draft-max", 3, "--draft-p-min", 0, "-ngld", 0],
            True,
        ),
        (["--spec-type", "ngram-simple"], False),
        (["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 1], False),
    ],
)
def test_the_text_is_the_same(run: Run, options: list[object], all_accepted: bool) -> None:
    plain, drafted = run("generate", *FIXED, "--json"), run("generate", *FIXED, "--json", *options)
    assert drafted.code == 0, drafted
    before, after = json.loads(plain.out), json.loads(drafted.out)
    assert after["tokens"] == before["tokens"]
    assert after["timings"]["n_drafted"] > before["timings"]["n_drafted"] == 0
    assert (after["timings"]["n_accepted"] == after["timings"]["n_drafted"]) == all_accepted


def test_none_is_none(run: Run) -> None:
    told = run("generate", *FIXED, "--json", "-md", packaged_model(), "--spec-type", "none")
    assert json.loads(told.out)["timings"]["n_drafted"] == 0


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
        *(
            ([flag, 1], "--draft-max, --draft-min, --draft-p-min and -ngld need -md FILE")
            for flag in ("--draft-max", "--draft-min", "--draft-p-min", "-ngld")
        ),
        *(
            (
                [f"--spec-ngram-simple-size-{letter}", 1, "-md", packaged_model()],
                "--spec-ngram-simple-… needs --spec-type ngram-simple",
            )
            for letter in "nm"
        ),
        (
            ["-md", packaged_model(), "--draft-p-min", 1.5],
            "'--draft-p-min' / '--spec-draft-p-min': 1.5 is not in 0 … 1",
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
