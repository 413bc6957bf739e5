"""A state that is put into cells behind the windows of other sequences, and is interrupted."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import Unsupported
from ggmlpy.graph.types import F32
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.spans import Spans
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.memory.store import KVStore
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.interrupts import interrupted_at
from tests.oracle.glass_model import Glass
from tests.oracle.side import check_pages

WINDOW = 6
TEXT = list(range(1, 61))


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 4)
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 4)


def make(layout: KVLayout) -> Context:
    """Sequence 1 fills the cache that has a window, nearly all of it behind its window."""
    context = Context(
        Glass((None, WINDOW)), backends_for("reference"), n_ctx=120, n_ubatch=8, n_seq_max=2,
        kv_layout=layout, type_k=F32, type_v=F32,
    )  # fmt: skip
    for n in range(0, context.memory.caches[1].cells.n_ctx, 4):
        context.decode(TEXT[n : n + 4], seq=1)
    return context


def stored(cache: KVCache, seq: int) -> dict[int, bytes]:
    """K and V of a sequence by position."""
    cells = cache.cells.of(seq)
    rows = np.concatenate(cache.store.save_rows(0, cells).rows, axis=1)
    positions = cache.cells.positions_of(seq, cells).tolist()
    return {at: row.tobytes() for at, row in zip(positions, rows, strict=True)}


def logits_after(n_past: int) -> NDArray[np.float32]:
    """Of token 61 after `n_past` tokens of the text, in a context of its own."""
    context = Context(
        Glass((None, WINDOW)), backends_for("reference"), n_ctx=120, n_ubatch=8, type_k=F32,
        type_v=F32,
    )  # fmt: skip
    context.decode(TEXT[:n_past])
    return context.decode([61]).copy()


@pytest.mark.parametrize("layout", ["unified", "paged"])
def test_other_sequences_hold_their_own_k_and_v_or_have_evicted_them(layout: KVLayout) -> None:
    """Wherever writing is interrupted, a sequence goes back to positions whose windows are intact,
    and is refused the others."""
    giver = make(layout)
    giver.decode(TEXT[20:40], seq=0)
    state, n_past = take_state(giver.memory, 0), giver.n_past(1)
    want = {n: logits_after(n) for n in (n_past - 3, n_past // 2, 4)}
    n_rewound: list[int] = []
    for n in range(1, 200):
        context = make(layout)
        cells = context.memory.caches[1].cells
        before, evicted = stored(context.memory.caches[1], 1), cells.evicted(1)
        try:
            with interrupted_at(n, (KVStore,)):
                put_state(context.memory, 0, state)
        except KeyboardInterrupt:
            now = stored(context.memory.caches[1], 1)
            assert context.n_past(0) == 0
            assert now.items() <= before.items(), n
            lost = Spans.of(np.array(sorted(set(before) - set(now)), np.int32))
            assert cells.evicted(1) == evicted.plus(lost)
            if isinstance(cells, PagedCells):
                check_pages(cells)
            n_rewound.append(rewound(context, want))
        else:
            break
    assert set(n_rewound) == {2, 3}  # the last one while nothing is overwritten


def rewound(context: Context, want: dict[int, NDArray[np.float32]]) -> int:
    """To how many positions sequence 1 goes back, with these logits after each."""
    for n, (back, logits) in enumerate(want.items()):
        try:
            context.seq_rm(1, back)
        except Unsupported:
            return n
        np.testing.assert_array_equal(context.decode([61], seq=1), logits)
    return len(want)
