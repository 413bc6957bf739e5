"""The table of what was loaded and decided, `Llama.describe`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama
from ggmlpy.backends.cpu.backend import CpuBackend
from tests.engine.described import table
from tests.models.tiny import Tiny, write_model


@pytest.mark.placed
def test_the_table_tells_what_was_decided(tiny_path: Path) -> None:
    options: dict[str, Any] = {"n_ctx": 120, "n_ctx_seq": 60, "n_seq_max": 3, "kv_unified": True}
    with Llama(tiny_path, backend="cpu", n_threads=2, n_ubatch=16, **options) as llm:
        rows = table(llm)
        assert len(rows) == len(llm.describe().splitlines())
        isa = llm.engine.context.backends[0].settings().split()[-1]
    assert rows["model"].startswith("tiny.gguf: llama, 2 layers, 0.1 M parameters")
    assert rows["n_ctx"] == "120 tokens, those of all sequences together"
    assert rows["n_ctx_seq"] == "60 tokens, the most of one (trained with 128)"
    assert rows["n_seq_max"] == "3, unified: all share one stream of cells"
    # 2 layers of 256 cells, 2 heads of 16 in f16: 32768 bytes of K, and of V; for each of 3
    # sequences a list of up to 256 cells in i32: 3072 bytes
    assert rows["attention"] == (
        "2 layers, 1 x 256 cells (padded; 120 are used), K f16 0.0328 MB, V f16 0.0328 MB,"
        " lists i32 0.0031 MB"
    )
    assert rows["memory"] == "0.0686 MB"
    assert rows["n_batch"] == "2048 tokens, of which n_ubatch = 16 run at a time"
    assert rows["token_budget"] == (
        "128 tokens of a step in which any sequence decodes, at least 2 of prompts"
    )
    n = re.search(r"runs (\d+) of \1 nodes", rows["backend"])
    assert n is not None
    assert rows["backend"].startswith(f"cpu, 2 threads, instruction set {isa}, runs ")
    assert rows["fallback"] == f"reference, runs 0 of {n[1]} nodes"


def test_the_table_counts_pages(tiny_path: Path) -> None:
    options: dict[str, Any] = {"n_ctx": 100, "n_seq_max": 3, "kv_layout": "paged"}
    with Llama(tiny_path, backend="reference", n_ubatch=16, **options) as llm:
        assert table(llm)["n_seq_max"] == "3, paged: all share one stream of cells in pages"
        llm.engine.context.decode(range(3, 15))
        llm.engine.context.seq_cp(0, 1)
        llm.engine.context.decode([5], seq=1)
        assert table(llm)["attention"] == (
            "2 layers, 1 x 256 cells (padded; 104 are used), 13 pages of 8 (3 used, 1 shared),"
            " K f16 0.0328 MB, V f16 0.0328 MB, lists i32 0.0031 MB"
        )


def test_the_table_says_how_k_and_v_are_rotated(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", Tiny(n_head=2, head_size=128, n_rot=128))
    with Llama(path, backend="reference", n_ctx=64, type_k="q8_0", type_v="q4_0") as llm:
        assert ", K q8_0 rotated by 128 0." in table(llm)["attention"]
        assert ", V q4_0 rotated by 64 0." in table(llm)["attention"]


@pytest.mark.filterwarnings("ignore:the 128 tokens that the model was trained with leave")
@pytest.mark.parametrize("kind", ["gemma3", "lfm2"])
def test_every_kind_of_memory_has_its_row(tmp_path: Path, kind: str) -> None:
    model = (
        Tiny("gemma3", n_layer=3, window=5, windowed=(0, 2), qk_norm=True, post_norms=True)
        if kind == "gemma3"
        else Tiny("lfm2", n_layer=3, qk_norm=True, convolutions=(0, 2))
    )
    path = write_model(tmp_path / "m.gguf", model)
    with Llama(path, backend="reference", n_seq_max=2) as llm:
        rows = table(llm)
    kv = "K f16 {} MB, V f16 {} MB, lists i32 {} MB"  # of 2 sequences
    assert rows["n_seq_max"] == "2, split: each has a stream of cells of its own"
    one = "1 layer, 2 x 256 cells (padded; 64 are used), " + kv.format("0.0328", "0.0328", "0.0020")
    assert rows["attention"] == one
    if kind == "gemma3":
        two = "2 layers, 2 x 256 cells (padded; 64 are used), " + kv.format(
            "0.0655", "0.0655", "0.0061"
        )
        assert rows["window 5"] == two
    else:
        assert (
            rows["recurrent"] == "2 layers, 2 states, f32 0.0041 MB"
        )  # 2 x 2 rows x 2 x 2 taps x 64 x 4


@pytest.mark.placed
def test_nodes_that_the_backend_cannot_run_are_named(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supports = CpuBackend.supports
    monkeypatch.setattr(
        CpuBackend, "supports", lambda self, node: node.op.name != "add" and supports(self, node)
    )
    with Llama(tiny_path, backend="cpu", n_threads=1) as llm:
        rows = table(llm)
    assert re.search(r"reference, runs \d+ of \d+ nodes \(.*\b4 add\b", rows["fallback"])
    assert "cpu, 1 thread, instruction set" in rows["backend"]
