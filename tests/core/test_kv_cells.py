from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import CacheFull
from ggmlpy.memory.batch import TokenRun
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import Sight
from ggmlpy.models.memory import Window
from tests.seen import seen_cells


def add(cells: KVCells, n_tokens: int, seq: int = 0) -> np.ndarray:
    """The next positions of a sequence, in cells that are found for them."""
    slot = cells.find_slot(n_tokens, cells.stream_of(seq))
    start = cells.pos_max(seq) + 1
    cells.occupy(slot, np.arange(start, start + n_tokens, dtype=np.int32), (seq,))
    return slot


def seen(cells: KVCells, seq: int, *positions: int) -> list[list[int]]:
    """The cells that tokens of a sequence at some positions see."""
    return [sorted(seen_cells(cells, seq, at)[0].tolist()) for at in positions]


def test_full_is_an_error_and_changes_nothing() -> None:
    cells = KVCells(300)
    add(cells, 298)
    with pytest.raises(CacheFull, match="3 more tokens do not fit: 298 of 300 cells are in use"):
        cells.find_slot(3)
    assert cells.n_used() == 298
    assert len(add(cells, 2)) == 2


def test_who_holds_what_is_in_the_message_of_a_full_cache() -> None:
    unified = KVCells(32, n_seq_max=6)
    for seq, n in enumerate((3, 9, 0, 2, 8, 4)):
        unified.occupy(unified.find_slot(n), np.arange(n, dtype=np.int32), (seq,)) if n else None
    with pytest.raises(CacheFull) as caught:
        unified.find_slot(9)
    assert str(caught.value) == (
        "9 more tokens do not fit: 26 of 32 cells are in use, 9 by sequence 1, 8 by sequence 4,"
        " 4 by sequence 5, 3 by sequence 0, others by 1 more"
    )
    split = KVCells(8, n_seq_max=2, unified=False)
    split.occupy(np.arange(6), np.arange(6, dtype=np.int32), (1,))
    with pytest.raises(CacheFull) as caught:
        split.find_slot(3, 1)
    assert str(caught.value) == (
        "3 more tokens do not fit: 6 of 8 cells of stream 1 are in use, 6 by sequence 1"
    )


def test_holes_are_filled_first() -> None:
    cells = KVCells(300)
    add(cells, 10)
    cells.release(0, cells.of(0, 3, 6))
    assert cells.n_used() == 7
    assert add(cells, 4).tolist() == [3, 4, 5, 10]
    assert cells.pos_max(0) == 13


def together(cells: KVCells, seq: int, n_tokens: int) -> UBatch:
    """One ubatch of as many tokens of a sequence and of sequence 2."""
    places = np.arange(2 * n_tokens)
    runs = [TokenRun((seq,), places[:n_tokens]), TokenRun((2,), places[n_tokens:])]
    return UBatch.of(runs if seq != 2 else runs[:1], cells.n_stream == 1)


def packed_with_room(cells: KVCells, model: dict[tuple[int, int], int], tokens: UBatch) -> bool:
    """Whether no stream of the tokens has an empty cell before others, or too few behind them."""
    for stream in {cells.stream_of(seq) for seq in tokens.seqs.tolist()}:
        used = {c for (s, _), c in model.items() if cells.stream_of(s) == stream}
        n_new = sum(cells.stream_of(seq) == stream for seq in tokens.seqs.tolist())
        if used != set(range(len(used))) or len(used) + n_new > cells.n_ctx:
            return False
    return True


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "undone", "append", "append undone", "remove", "share"]),
        st.integers(0, 2),
        st.integers(1, 40),
        st.integers(0, 40),
    ),
    max_size=25,
)


@pytest.mark.parametrize("unified", [True, False])
@given(steps=STEPS)
def test_what_is_kept_beside_the_cells_agrees_with_them(
    unified: bool, steps: list[tuple[str, int, int, int]]
) -> None:
    """Against a dict from (sequence, position) to cell, through any additions and removals."""
    cells = KVCells(200, n_seq_max=3, unified=unified)
    model: dict[tuple[int, int], int] = {}
    for kind, seq, n, start in steps:
        stream = cells.stream_of(seq)
        used = {c for (s, _), c in model.items() if cells.stream_of(s) == stream}
        if kind in ("add", "undone") and len(used) + n <= 200:
            first = cells.pos_max(seq) + 1
            found = cells.find_slot(n, stream)
            before = cells.snapshot(stream, found)
            cells.occupy(found, np.arange(first, first + n, dtype=np.int32), (seq,))
            if kind == "undone":
                cells.restore(before)
            else:
                model |= {(seq, first + i): int(c) for i, c in enumerate(found)}
        elif kind in ("append", "append undone"):
            tokens = together(cells, seq, n)
            starts = [cells.pos_max(s) + 1 for s in tokens.run_seqs.tolist()]
            positions = np.concatenate([start + np.arange(n) for start in starts])
            at = cells.find_append(tokens)
            assert (at is None) == (not packed_with_room(cells, model, tokens))
            if at is not None:
                cells.append(at, tokens, positions.astype(np.int32))
                if kind == "append undone":
                    cells.undo_append(at)
                else:
                    keys = zip(tokens.seqs.tolist(), positions.tolist(), strict=True)
                    model |= dict(zip(keys, at.cells.tolist(), strict=True))
        elif kind == "remove":
            cells.release(seq, cells.of(seq, start, start + n))
            gone = {(seq, p) for p in range(start, start + n)}
            model = {key: c for key, c in model.items() if key not in gone}
        elif kind == "share" and unified and not any(s == (seq + 1) % 3 for s, _ in model):
            cells.share((seq + 1) % 3, cells.of(seq, start))
            model |= {
                ((seq + 1) % 3, p): c for (s, p), c in model.items() if s == seq and p >= start
            }
        for s in range(3):
            mine = {p: c for (t, p), c in model.items() if t == s}
            assert cells.pos_max(s) == max(mine, default=-1)
            assert cells.pos_min(s) == min(mine, default=-1)
            assert set(cells.of(s).tolist()) == set(mine.values())
            assert seen(cells, s, 1000) == [sorted(mine.values())]
        for stream in range(cells.n_stream):
            held = {c for (s, _), c in model.items() if cells.stream_of(s) == stream}
            assert cells.n_used(stream) == len(held)


def test_lists_are_causal() -> None:
    cells = KVCells(300)
    add(cells, 5)
    assert seen(cells, 0, 2, 3, 4) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a_window_hides_what_is_behind_it_and_its_cells_are_used_again() -> None:
    cells = KVCells(8, sight=Sight(Window(4)))
    add(cells, 8)
    assert seen(cells, 0, 7) == [[4, 5, 6, 7]]
    assert add(cells, 3).tolist() == [0, 1, 2]  # the oldest, which no later token sees
    assert cells.pos_min(0) == 3
    assert seen(cells, 0, 10) == [[0, 1, 2, 7]]
    with pytest.raises(CacheFull):  # 11 needs 8 to 10, which hold their cells
        cells.find_slot(6)


def test_shared_cells_behind_every_window_are_used_again() -> None:
    cells = KVCells(8, n_seq_max=2, sight=Sight(Window(4)))
    cells.share(1, add(cells, 8))
    assert add(cells, 4).tolist() == [0, 1, 2, 3]  # of 4, which both next tokens do not see
    assert cells.of(1).tolist() == [4, 5, 6, 7]
    with pytest.raises(CacheFull):  # the second sequence is still at 8, and sees 5 to 7
        cells.find_slot(3)


def test_positions_evicted_in_the_middle_are_known() -> None:
    cells = KVCells(12, n_seq_max=2, sight=Sight(Window(4)))
    cells.share(1, add(cells, 4))
    add(cells, 8)
    assert cells.sees_all(0, 7)
    add(cells, 4)
    held = cells.positions_of(0, cells.of(0)).tolist()
    assert sorted(held) == [1, 2, 3, *range(7, 16)]  # 1 to 3 for the second sequence's sake
    assert [n for n in range(17) if cells.sees_all(0, n)] == [0, 4, *range(10, 17)]
