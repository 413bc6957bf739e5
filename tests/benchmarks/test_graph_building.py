"""The benchmark of building graphs: what is counted, and what is refused. Nothing is timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import graph_building
from benchmarks.graph_building import N_TOKENS, main
from tests.models.tiny import Tiny, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny(n_ctx=2 * N_TOKENS))


def test_the_command(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--repeat", "1"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "tiny.gguf" in line)
    _, architecture, n_nodes, *_ = (cell.strip() for cell in row.strip("│").split("│"))
    assert architecture == "llama"
    assert int(n_nodes) > 40


def test_all_files_are_looked_for_before_the_first_is_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(graph_building, "measure")
    with pytest.raises(SystemExit):
        main([str(model), "none.gguf"])
    assert "there is no file none.gguf" in capsys.readouterr().err
