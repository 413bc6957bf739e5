"""The profile of a decode step: what counts as whose time. Nothing is timed here."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from benchmarks import step_parts as module
from benchmarks.step_parts import PARTS, PLAN, STEP, Clock, main, python_us
from ggmlpy.engine.engine import Engine
from tests.models.tiny import Tiny, write_model


def test_a_part_does_not_count_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(0, 1000)  # a microsecond between any two looks at the clock
    monkeypatch.setattr(module, "perf_counter_ns", lambda: next(ticks))
    clock = Clock()
    plan = clock.timed(PLAN, lambda: "made")
    step = clock.timed(STEP, lambda: (plan(), plan()))
    for _ in range(3):
        assert step() == ("made", "made")
    us = clock.medians(2)
    assert us[PLAN] == 2
    assert us[STEP] == 3  # before, between and after
    assert python_us(us) == 3
    assert sum(us.values()) == 5
    assert len(clock.steps) == 3


FULL_PATH = {"checking and arranging the batch", "cells of the cache", "inputs of the graph"}
WINDOWED = Tiny("gemma3", window=8, windowed=(0,), qk_norm=True, post_norms=True, neox=True)


@pytest.mark.parametrize("model", [Tiny(), WINDOWED], ids=["full", "windowed"])
def test_every_part_takes_some_time_and_nothing_stays_patched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: Tiny,
) -> None:
    monkeypatch.setattr(module, "RESULTS", tmp_path / "r.json")
    path = write_model(tmp_path / "tiny.gguf", model)
    before = Engine.advance
    options = ["--sequences", "1,2", "--temperature", "0.8", "--steps", "3", "--save"]
    assert main([str(path), *options]) == 0
    assert Engine.advance is before
    (entry,) = json.loads((tmp_path / "r.json").read_text(encoding="utf-8")).values()
    assert [row["sequences"] for row in entry["rows"]] == [1, 2]
    for row in entry["rows"]:
        assert set(row["us"]) == set(PARTS)
        assert {part for part, us in row["us"].items() if us == 0} == FULL_PATH
    shown = capsys.readouterr().out
    assert "Python in all" in shown
    assert not [part for part in FULL_PATH if part in shown]


def test_what_cannot_be_loaded_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err
