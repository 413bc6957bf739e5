"""The depth benchmark: what is asked of the engines, what is made of it. Nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import depth as module
from benchmarks.depth import Row, Settings, against_split, main, measure, parse, show
from tests.benchmarks.toys import CannedEngine
from tests.models.tiny import Tiny, write_model

SETTINGS = Settings(
    n_seqs=4, depths=[10, 0], layouts=module.LAYOUTS, n_steps=3, n_rounds=2, type_k="q8_0",
    type_v="f16",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_bandwidth", lambda n_threads: 1e6)


def test_every_layout_is_filled_and_run_in_turns() -> None:
    log: list[Any] = []
    engines = [CannedEngine("ggmlpy", 0.01, log), CannedEngine("llama.cpp", 0.02, log)]
    rows = list(measure(SETTINGS, engines))
    assert [(row.layout, row.depth) for row in rows] == [
        ("split", 10), ("split", 0), ("paged", 10), ("paged", 0), ("unified", 10), ("unified", 0),
        ("interleaved", 10),
    ]  # fmt: skip
    contexts = [(name, asked["layout"]) for name, do, asked in log if do == "open"]
    assert contexts == [
        ("ggmlpy", "split"), ("llama.cpp", "split"), ("ggmlpy", "paged"),
        ("ggmlpy", "unified"), ("llama.cpp", "unified"),
    ]  # fmt: skip
    (asked,) = {tuple(asked.items()) for *_, do, asked in log[:1] if do == "open"}
    assert dict(asked) == {
        "n_ctx": 4 * (10 + 1 + 3), "n_seq_max": 4, "layout": "split", "type_k": "q8_0",
        "type_v": "f16",
    }  # fmt: skip
    steps = [(name, asked["interleaved"]) for name, do, asked in log if do == "decode"]
    both = [("ggmlpy", False), ("llama.cpp", False)]
    assert steps == both * 4 + [("ggmlpy", False)] * 4 + both * 4 + [("ggmlpy", True)] * 2
    assert rows[0].steps_s == {"ggmlpy": [0.01] * 6, "llama.cpp": [0.02] * 6}
    assert rows[-1].steps_s == {"ggmlpy": [0.01] * 6}
    # The warm step is over: the second of three timed ones is the median.
    assert rows[0].bytes_read == 1000 + 4 * (10 + 1 + 2)


def test_a_row_is_held_against_its_floor_and_the_split_cache() -> None:
    split = Row(512, "split", 4, {"ggmlpy": [0.1, 0.2, 0.9], "llama.cpp": [0.6]}, 10**9)
    unified = Row(512, "unified", 4, {"ggmlpy": [0.3], "llama.cpp": [0.9]}, 10**9)
    rows = [split, unified]
    assert split.step_s("ggmlpy") == 0.2
    assert split.rate("ggmlpy") == 20
    assert split.floors("ggmlpy", 10e9) == 2
    assert split.advantage == pytest.approx(3)
    assert against_split(unified, rows, "ggmlpy") == pytest.approx(1.5)
    assert against_split(split, rows, "ggmlpy") is None
    assert against_split(unified, [unified], "ggmlpy") is None


def test_the_table_has_a_line_for_each_layout(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row(512, "split", 4, {"ggmlpy": [0.2], "llama.cpp": [0.6]}, 10**9),
        Row(512, "interleaved", 4, {"ggmlpy": [0.3]}, 10**9),
    ]
    show(rows, 10e9, "tiny")
    lines = [s for s in capsys.readouterr().out.splitlines() if " 512 " in s]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert cells == [
        ["512", "split", "200", "20.0", "2", "-", "600", "6.67", "6", "-", "3"],
        ["512", "interleaved", "300", "13.3", "3", "1.5", "-", "-", "-", "-", "-"],
    ]


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_model(tmp_path / "tiny.gguf", Tiny()))
    results = tmp_path / "results.json"
    arguments = [
        model, "--sequences", "2", "--depths", "0,5", "--steps", "2", "--rounds", "1",
        "--threads", "1", "--backend", "reference", "--save", str(results),
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "interleaved" in capsys.readouterr().out
    (entry,) = json.loads(results.read_text()).values()
    assert len(entry["rows"]) == 7
    assert all(row["floors"]["ggmlpy"] > 0 for row in entry["rows"])
    assert [row["against_split"]["ggmlpy"] is None for row in entry["rows"]] == (
        [True] * 2 + [False] * 5
    )


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--layouts", "ring"], ["--depths", "-1"], ["--depths", ""], ["--steps", "0"]):
        with pytest.raises(SystemExit):
            parse(["m.gguf", *wrong])
        assert wrong[0] in capsys.readouterr().err


def test_a_failing_engine_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "none.gguf"), "--backend", "reference"]
    assert main(arguments) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ggmlpy, load: MissingFile: ")
