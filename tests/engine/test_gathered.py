"""Attention in separate ops gathers the cells that the tokens of a ubatch see, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, write_model

WINDOW = 8
MODEL = Tiny(
    "gemma3", n_head=2, n_head_kv=1, n_rot=32, qk_norm=True, post_norms=True, window=WINDOW,
    windowed=(0,), neox=True,
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cells_that_no_query_sees_are_not_gathered(tmp_path: Path, layout: str) -> None:
    """Two sequences, one of them deep: behind the window lie 400 cells that it held before."""
    model = load_model(GGUFFile.open(write_model(tmp_path / "tiny.gguf", MODEL)))
    context = Context(
        model, backends_for("null"), n_ctx=1024, n_ubatch=64, n_seq_max=2, kv_layout=layout,
        flash_attn=False,
    )  # fmt: skip
    context.decode([5] * 409)
    context.decode([5] * 10, seq=1)
    batch = Batch()
    for seq in (0, 1):
        batch.add_sequence(seq, [5, 5, 5], context.n_past(seq))
    context.decode_batch(batch)
    for cache in context.memory.caches:
        cells, name = cache.cells, "" if cache.cells.window is None else "_swa"
        gathered = context.last_graph.find(f"attn_inp_gathered{name}")
        assert gathered.ne[0] == 2 * (256 if cells.window else 512)
        for seq, rows in enumerate(gathered.array().reshape(2, -1)):
            n_past = context.n_past(seq)
            first = n_past - 3 - WINDOW + 1 if cells.window else 0  # what the first token sees
            seen = cells.stream_of(seq) * cells.kv_size + cells.of(seq, first, n_past)
            assert set(rows.tolist()) == set(seen.tolist())
            assert len(seen) == n_past - first
