"""The benchmark of mixtures: what is run, in which turn, and what is made of it. Nothing is timed
here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import mixture as module
from benchmarks import report, serving
from benchmarks.arrivals import Arrival, Lengths
from benchmarks.mixture import Figures, Mixture, Row, main, measure_all, parse, show
from benchmarks.serving import LAYOUTS, Setup, Step, build_share, measure, serve
from ggmlpy import Llama
from ggmlpy.text.tokenizer import Tokenizer
from tests.models.tiny import Tiny, write_model

LENGTHS = Lengths(prompt=6, answer=5, sigma=0.5, n_ctx_seq=32)
MIXTURE = Mixture(LENGTHS, float("inf"), 1.5, None, 2, 1, ("split", "unified"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(module, "in_fresh_process", call)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_request_is_answered(model: Path, layout: str) -> None:
    requests = MIXTURE.requests(3, 288, 1000.0)
    run = measure(Setup(model, 3, 32, 1, "reference"), layout, requests, seed=1)
    assert run.speed.tokens_per_s > 0
    assert run.speed.first_token_p99_s >= run.speed.first_token_p50_s > 0
    assert run.in_step_tokens_per_s > 0
    assert 0 < run.running_share <= 1
    assert run.n_plans_built >= 2
    assert 0 < run.build_share < 1
    # 3 sequences in streams of 256 cells, of which they use at most 32, or in 96 cells in all.
    waste = {"split": (1 - 32 / 256, 1), "unified": (0, 0), "paged": (0, 0.5)}[layout]
    assert waste[0] <= run.waste <= waste[1]
    assert 0 < run.cache_share < 1
    assert run.n_reused <= 2


def test_a_step_is_recorded_as_it_is(model: Path) -> None:
    requests = [Arrival(0.0, (5, 6, 7), 3), Arrival(0.0, (8, 9), 2)]
    layout = LAYOUTS["split"]
    with Llama(model, n_ctx=64, n_seq_max=2, backend="reference", **layout.options) as llm:
        recording = serve(llm, requests, layout.reserved, "toy")
    assert [(step.n_running, step.reserved, step.held) for step in recording.steps] == [
        (2, 512, 5), (1, 256, 4), (0, 0, 0),
    ]  # fmt: skip
    assert list(map(len, recording.times)) == [3, 2]
    assert recording.times[0][:2] == recording.times[1]


def test_an_answer_does_not_end_early(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token but one would end it: only that one is left."""
    monkeypatch.setattr(Tokenizer, "eog_ids", frozenset(range(288)) - {9})
    with Llama(model, n_ctx=32, backend="reference") as llm:
        request = serving._request(llm, Arrival(0.0, (5,), 4))
        llm.engine.add(request)
        tokens = []
        while llm.engine.has_work:
            for output in llm.engine.step():
                assert not isinstance(output.piece, Exception)
                tokens.append(output.piece.token)
    assert tokens == [9] * 4


def test_shares_of_building_are_of_the_time_of_steps() -> None:
    steps = [Step(1.0, 0.5, 1, 1, 1), Step(3.0, 0.0, 1, 1, 1)]
    assert build_share(steps) == 0.125


def test_engines_and_layouts_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ours(setup: Setup, layout: str, requests: Any, seed: int) -> dict[str, float | None]:
        asked.append(layout)
        return {"tokens_per_s": float(len(asked)), "late_build_share": None}

    def peers(program: str, setup: Setup, requests: Any) -> dict[str, float | None]:
        asked.append(program)
        return {"tokens_per_s": 10.0}

    monkeypatch.setattr(module, "_ours", ours)
    monkeypatch.setattr(module, "_peers", peers)
    rows = list(measure_all(MIXTURE, Setup(tmp_path / "m.gguf", 2, 32, 1), 288, "server"))
    assert asked == ["split", "unified", "server"] * 2
    assert [(row.engine, row.layout) for row in rows] == [
        ("ggmlpy", "split"), ("ggmlpy", "unified"), ("llama-server", "split"),
    ]  # fmt: skip
    assert rows[0].median("tokens_per_s") == 2.5  # of 1 and 4
    assert rows[0].median("late_build_share") is None
    assert rows[2].median("n_plans_built") is None
    assert rows[0].n_requests == 16
    assert rows[0].as_record()["rate"] == "inf"


def test_the_rate_follows_from_the_speed_in_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "in_fresh_process", lambda *_: 100.0)
    unset = Mixture(LENGTHS, None, 2.0, 50, 1, 1, ("split",))
    rate = module._rate(unset, Setup(tmp_path / "m.gguf", 2, 32, 1), 288)
    mean = sum(r.n_predict for r in unset.requests(2, 288, 1.0)) / 50
    assert rate == pytest.approx(2.0 * 100 / mean)


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    figures: Figures = {
        "in_step_tokens_per_s": 650.0, "tokens_per_s": 500.0, "first_token_p50_s": 0.25,
        "n_plans_built": 7, "waste": 0.04,
    }  # fmt: skip
    ours = Row("ggmlpy", "split", 8, 64, 100, 200, 2.0, (figures,))
    peer = Row("llama-server", "split", 8, 64, 100, 200, 2.0, ({"tokens_per_s": 20.0},))
    show([ours, peer], "tiny")
    lines = [s for s in capsys.readouterr().out.splitlines() if s.startswith("│    8")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert cells == [
        ["8", "split", "500", "-", "-", "-", "250", "-", "-", "-"],
        ["8", "llama-server", "20.0", *["-"] * 7],
        ["8", "split", "650", "-", "-", "7", "-", "-", "4.0%", "-", "-"],
    ]


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "REDRAW_S", 0.0)
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
        monkeypatch.setattr(report, "_stderr", console)
        with report.progress("toy", 4) as advance:
            advance(3)
        assert isinstance(console.file, io.StringIO)
        assert ("3/4" in console.file.getvalue()) is is_terminal


@pytest.mark.usefixtures("in_this_process")
def test_the_whole_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    arguments = [
        str(model), "--sequences", "1,2", "--layouts", "unified", "--requests", "3", "--rounds",
        "1", "--prompt-tokens", "4", "--answer-tokens", "3", "--ctx-seq", "32", "--threads", "1",
        "--backend", "reference", "--json", "--save", str(results),
    ]  # fmt: skip
    assert main(arguments) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (entry,) = json.loads(results.read_text()).values()
    assert printed == entry["rows"]
    assert [row["n_seqs"] for row in printed] == [1, 2]
    assert all(row["n_requests"] == 3 and row["tokens_per_s"] > 0 for row in printed)
    assert entry["plan"]["layouts"] == ["unified"]


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ["--layouts", "ring"], ["--sequences", "65"], ["--sequences", "0"], ["--rate", "0"],
        ["--rate", "nan"], ["--rate", "fast"], ["--rounds", "0"],
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            parse(["m.gguf", *wrong])
        assert wrong[0] in capsys.readouterr().err


def test_files_and_servers_that_are_not_there_are_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.gguf")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: none.gguf")
    assert main([str(model), "--peer-server", str(tmp_path / "none")]) == 1
    assert "error: llama-server: cannot run" in capsys.readouterr().err
