"""An interrupt at any line of an operation on sequences: it is done, or nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggmlpy.graph.types import F32
from ggmlpy.memory.cell_table import CellTable
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.recurrent_state import RecurrentState
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.shift import Move
from ggmlpy.memory.store import KVStore
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.interrupts import interrupted_at
from tests.oracle.glass_model import Glass

OWNERS = (SequenceMemory, Move, CellTable, KVCells, KVStore, RecurrentState)

OPERATIONS: dict[str, Callable[[Context], None]] = {
    "copy": lambda context: context.seq_cp(0, 1),
    "copy a part": lambda context: context.seq_cp(0, 1, 4, 7),
    "shift": lambda context: context.seq_add(0, 0, None, 3),
    "shift below 0": lambda context: context.seq_add(0, 0, None, -2),
}


def make(unified: bool, flash_attn: bool, recurrent: bool) -> Context:
    """Two sequences that share their first four tokens, where streams are shared, and differ."""
    context = Context(
        Glass((None, 6), recurrent), backends_for("reference"), n_ctx=40, n_ubatch=8, n_seq_max=2,
        kv_unified=unified, type_k=F32, type_v=F32, flash_attn=flash_attn,
    )  # fmt: skip
    context.decode([1, 2, 3, 4])
    context.seq_cp(0, 1)
    context.decode([5, 6, 7])
    context.decode([8, 9, 10, 11], seq=1)
    return context


def contents(memory: SequenceMemory) -> list[Any]:
    """Positions of each sequence with K and V of each, what is evicted, recurrent states."""
    found: list[Any] = []
    for seq in range(memory.sizes.n_seq_max):
        for cache in memory.caches:
            cells, stream = cache.cells.of(seq), cache.cells.stream_of(seq)
            rows = np.concatenate(cache.store.save_rows(stream, cells).rows, axis=1)
            positions = cache.cells.positions_of(seq, cells).tolist()
            stored = {at: row.tobytes() for at, row in zip(positions, rows, strict=True)}
            found.append((stored, cache.cells.evicted(seq)))
            found.append((cache.cells.pos_max(seq), cache.cells.n_used(stream)))
        if memory.recurrent is not None:
            found += [state.tobytes() for state in memory.recurrent.read(seq).values()]
    return found


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "unfused"])
@pytest.mark.parametrize(
    ("operation", "recurrent"), [*((each, False) for each in OPERATIONS), ("copy", True)]
)
def test_it_is_done_or_nothing_is_changed(
    operation: str, recurrent: bool, unified: bool, flash_attn: bool
) -> None:
    """Also where freed cells are scrubbed, as attention without the fused op needs it."""
    context = make(unified, flash_attn, recurrent)
    before = contents(context.memory)
    done = make(unified, flash_attn, recurrent)
    OPERATIONS[operation](done)
    after = contents(done.memory)
    assert after != before
    n_undone = 0
    for n in range(1, 2000):
        try:
            with interrupted_at(n, OWNERS):
                OPERATIONS[operation](context)
        except KeyboardInterrupt:
            now = contents(context.memory)
            assert now in (before, after), n
            n_undone += now == before
            if now == after:
                context = make(unified, flash_attn, recurrent)
        else:
            break
    assert contents(context.memory) == after
    assert 30 < n_undone >= n - 3  # the last lines come after all that is to be done
