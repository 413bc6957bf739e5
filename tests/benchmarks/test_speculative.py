"""The benchmark of speculative decoding: what it reports, not how fast that is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import speculative
from benchmarks.speculative import Guesses
from ggmlpy import packaged_model
from ggmlpy.draft import Asked


def test_guesses_are_right_as_often_as_asked() -> None:
    text = list(range(2000))
    for right in (0, 0.5, 1):
        guesses = Guesses([text], right, n_vocab=4096)
        (draft,) = guesses.draft([Asked(0, text[:1], 1500)])
        share = sum(a == b for a, b in zip(draft, text[1:], strict=False)) / len(draft)
        assert share == pytest.approx(right, abs=0.05)
    assert guesses.draft([Asked(0, [5], 3)]) == [[]]


def test_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "speculative.json"
    monkeypatch.setattr(speculative, "RESULTS", results)
    arguments = ["--sequences", "1,2", "--right", "1", "--tokens", "12", "--repeat", "1", "--save"]
    own = ["--draft", str(packaged_model())]
    monkeypatch.setattr(sys, "argv", ["speculative.py", *arguments, *own])
    assert speculative.main() == 0
    assert "100% right" in capsys.readouterr().out
    (entry,) = json.loads(results.read_text()).values()
    assert entry["rows"].keys() == {"1", "2"}
    for rows in entry["rows"].values():
        assert rows.keys() == {"none", "100% right", "prompt lookup", packaged_model().stem}
        assert rows["none"]["speed_up"] == 1 and rows["none"]["n_drafted"] == 0
        assert rows["100% right"]["n_accepted"] == rows["100% right"]["n_drafted"] > 0


def test_a_model_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speculative.py", "none.gguf"])
    assert speculative.main() == 1
    assert "none.gguf: there is no such file" in capsys.readouterr().err
