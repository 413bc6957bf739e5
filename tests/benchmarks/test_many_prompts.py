"""The benchmark of many prompts: what it counts. Nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import many_prompts as module
from benchmarks.many_prompts import Layout, Row, Work, layouts, main, measure, mixed_prompts, show
from tests.models.tiny import Tiny, write_model


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())
    return Work(path, mixed_prompts(12, 4, seed=3), max_tokens=10, backend="cpu", n_threads=1)


def test_prompts_are_of_mixed_length_and_the_same_each_time() -> None:
    prompts = mixed_prompts(200, 60, seed=1)
    lengths = {len(prompt.split()) for prompt in prompts}
    assert (min(lengths), max(lengths)) == (1, 60)
    assert prompts == mixed_prompts(200, 60, seed=1)


def test_layouts_write_the_same_with_too_few_cells_for_all(work: Work) -> None:
    together, alone = layouts(work, 4, share=0.5)
    assert alone == Layout(1, together.n_ctx_seq, together.n_ctx_seq)
    assert together.n_seq_max == 4
    assert together.n_ctx_seq <= together.n_ctx <= 2 * together.n_ctx_seq
    rows = [measure(work, layout) for layout in (together, alone)]
    assert rows[0].texts == rows[1].texts
    for row in rows:
        assert row.n_prompts == 12
        assert 0 < row.n_generated <= 12 * 10
        assert 0 < row.max_cells_used <= row.layout.n_ctx
        assert row.n_reused < row.n_prompt_tokens
        assert row.peak_resident_bytes > 10_000_000
    assert rows[0].n_prompt_tokens == rows[1].n_prompt_tokens
    assert rows[0].max_cells_used > rows[1].layout.n_ctx  # together they did need more
    assert rows[1].n_preempted == 0


def test_the_table_shows_rates(capsys: pytest.CaptureFixture[str]) -> None:
    show([Row(Layout(8, 100, 50), 2.0, 10, 300, 20, 80, 99, 3, 7, 5_000_000, ())])
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[1:-1]]
    assert cells == ["8", "5.0", "150.0", "40.0", "99/100", "3", "7", "5.0"]


def test_the_results_are_saved(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "RESULTS", tmp_path / "r.json")
    monkeypatch.setattr(module, "measure_alone", measure)  # in this process, which is quicker
    options = ["--prompts", "3", "--words", "2", "--max-tokens", "3", "--sequences", "2"]
    main([str(work.model), *options, "--threads", "1", "--backend", "cpu", "--save"])
    entries: dict[str, Any] = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    saved = entries["tiny.gguf"]
    assert [row["layout"]["n_seq_max"] for row in saved["rows"]] == [2, 1]
    assert all(row["prompts_per_s"] > 0 for row in saved["rows"])
    assert saved["same_texts"] == 3
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 3 texts are the same in both"


def test_texts_that_differ_are_told(
    work: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = iter(("a", "b"))
    layout = Layout(1, 9, 9)
    monkeypatch.setattr(
        module,
        "measure_alone",
        lambda work, _: Row(layout, 1.0, 1, 1, 0, 1, 1, 0, 1, 1, (next(texts),)),
    )
    with pytest.raises(SystemExit, match="1 texts differ, and none may"):
        main([str(work.model), "--prompts", "1"])
    assert "0 of 1 texts are the same in both" in capsys.readouterr().out
