from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import CacheFull, Unsupported
from ggmlpy.graph.types import F16, F32, Q8_0, TYPES, TensorType
from ggmlpy.memory.batch import TokenRun
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.models.memory import AttentionLayers

LAYERS = AttentionLayers((0, 1), n_embd_head_k=16, n_embd_head_v=16, n_head_kv=2)


def make(n_ctx: int = 300, type_k: TensorType = F16, type_v: TensorType = F16) -> KVCache:
    return KVCache(LAYERS, n_ctx, type_k, type_v)


def add(cache: KVCache, n_tokens: int, seq: int = 0) -> np.ndarray:
    """The next positions of a sequence, in cells of the cache's choice."""
    cells = cache.find_slot(n_tokens, cache.stream_of(seq))
    start = cache.seq_pos_max(seq) + 1
    cache.occupy(cells, np.arange(start, start + n_tokens, dtype=np.int32), (seq,))
    return cells


def test_leaves_have_a_stream_dimension() -> None:
    cache = KVCache(LAYERS, 300, F16, F32, n_seq_max=3, unified=False)
    assert cache.n_stream == 3
    assert cache.k[1].ne == (32, 512, 3, 1)
    assert cache.v[0].type is F32
    assert cache.n_bytes == 2 * 32 * 512 * 3 * (2 + 4)
    assert KVCache(LAYERS, 300, F16, F32, n_seq_max=3, unified=True).n_stream == 1


def test_cells_in_view_grow_by_256_up_to_the_size() -> None:
    cache = make(300)
    assert cache.n_kv() == 256
    add(cache, 256)
    assert cache.n_kv() == 256
    add(cache, 1)
    assert cache.n_kv() == 512


def test_full_is_an_error_and_changes_nothing() -> None:
    cache = make(300)
    add(cache, 298)
    with pytest.raises(CacheFull, match="3 more tokens do not fit: 298 of 300 cells are in use"):
        cache.find_slot(3)
    assert cache.n_used() == 298
    assert len(add(cache, 2)) == 2


def test_holes_are_filled_first() -> None:
    cache = make()
    add(cache, 10)
    cache.release(0, cache.cells_of(0, 3, 6))
    assert cache.n_used() == 7
    assert add(cache, 4).tolist() == [3, 4, 5, 10]
    assert cache.seq_pos_max(0) == 13


def together(cache: KVCache, seq: int, n_tokens: int) -> UBatch:
    """One ubatch of as many tokens of a sequence and of sequence 2."""
    places = np.arange(2 * n_tokens)
    runs = [TokenRun((seq,), places[:n_tokens]), TokenRun((2,), places[n_tokens:])]
    return UBatch.of(runs if seq != 2 else runs[:1], cache.n_stream == 1)


def packed_with_room(cache: KVCache, model: dict[tuple[int, int], int], tokens: UBatch) -> bool:
    """Whether no stream of the tokens has an empty cell before others, or too few behind them."""
    for stream in {cache.stream_of(seq) for seq in tokens.seqs.tolist()}:
        cells = {c for (s, _), c in model.items() if cache.stream_of(s) == stream}
        n_new = sum(cache.stream_of(seq) == stream for seq in tokens.seqs.tolist())
        if cells != set(range(len(cells))) or len(cells) + n_new > cache.n_ctx:
            return False
    return True


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "undone", "append", "taken back", "remove", "share"]),
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
    cache = KVCache(LAYERS, 200, F16, F16, n_seq_max=3, unified=unified)
    model: dict[tuple[int, int], int] = {}
    for kind, seq, n, start in steps:
        stream = cache.stream_of(seq)
        cells = {c for (s, _), c in model.items() if cache.stream_of(s) == stream}
        if kind in ("add", "undone") and len(cells) + n <= 200:
            first = cache.seq_pos_max(seq) + 1
            found = cache.find_slot(n, stream)
            before = cache.snapshot(stream, found)
            cache.occupy(found, np.arange(first, first + n, dtype=np.int32), (seq,))
            if kind == "undone":
                cache.restore(before)
            else:
                model |= {(seq, first + i): int(c) for i, c in enumerate(found)}
        elif kind in ("append", "taken back"):
            tokens = together(cache, seq, n)
            starts = [cache.seq_pos_max(s) + 1 for s in tokens.run_seqs.tolist()]
            positions = np.concatenate([start + np.arange(n) for start in starts])
            at = cache.find_append(tokens)
            assert (at is None) == (not packed_with_room(cache, model, tokens))
            if at is not None:
                cache.append(at, tokens, positions.astype(np.int32))
                if kind == "taken back":
                    cache.undo_append(at)
                else:
                    keys = zip(tokens.seqs.tolist(), positions.tolist(), strict=True)
                    model |= dict(zip(keys, at.cells.tolist(), strict=True))
        elif kind == "remove":
            cache.release(seq, cache.cells_of(seq, start, start + n))
            gone = {(seq, p) for p in range(start, start + n)}
            model = {key: c for key, c in model.items() if key not in gone}
        elif kind == "share" and unified and not any(s == (seq + 1) % 3 for s, _ in model):
            cache.share((seq + 1) % 3, cache.cells_of(seq, start))
            model |= {
                ((seq + 1) % 3, p): c for (s, p), c in model.items() if s == seq and p >= start
            }
        for s in range(3):
            mine = {p: c for (t, p), c in model.items() if t == s}
            assert cache.seq_pos_max(s) == max(mine, default=-1)
            assert cache.seq_pos_min(s) == min(mine, default=-1)
            assert set(cache.cells_of(s).tolist()) == set(mine.values())
            mask = np.ones((1, cache.n_kv((cache.stream_of(s),))), np.float16)
            cache.fill_mask(mask, np.array([1000], np.int32), np.array([s]))
            assert set(np.flatnonzero(mask[0] == 0).tolist()) == set(mine.values())
        for stream in range(cache.n_stream):
            held = {c for (s, _), c in model.items() if cache.stream_of(s) == stream}
            assert cache.n_used(stream) == len(held)


def test_mask_is_causal() -> None:
    cache = make()
    add(cache, 5)
    mask = np.empty((3, 256), np.float16)
    cache.fill_mask(mask, np.array([2, 3, 4], np.int32), np.array([0]))
    for row, last in zip(mask, (2, 3, 4), strict=True):
        assert (row[: last + 1] == 0).all()
        assert np.isneginf(row[last + 1 :]).all()


def test_a_window_hides_what_is_behind_it_and_its_cells_are_used_again() -> None:
    layers = AttentionLayers((0,), 16, 16, 2, window=4)
    cache = KVCache(layers, 8, F16, F16)
    add(cache, 8)
    mask = np.empty((1, 256), np.float16)
    cache.fill_mask(mask, np.array([7], np.int32), np.array([0]))
    assert np.flatnonzero(mask[0] == 0).tolist() == [4, 5, 6, 7]
    assert add(cache, 3).tolist() == [0, 1, 2]  # the oldest, out of every later token's sight
    assert cache.seq_pos_min(0) == 3
    cache.fill_mask(mask, np.array([10], np.int32), np.array([0]))
    assert np.flatnonzero(mask[0] == 0).tolist() == [0, 1, 2, 7]
    with pytest.raises(CacheFull):  # 11 needs 8 to 10, which hold their cells
        cache.find_slot(6)


def test_shared_cells_behind_every_window_are_used_again() -> None:
    layers = AttentionLayers((0,), 16, 16, 2, window=4)
    cache = KVCache(layers, 8, F16, F16, n_seq_max=2)
    cache.share(1, add(cache, 8))
    assert add(cache, 4).tolist() == [0, 1, 2, 3]  # of 4, which both next tokens do not see
    assert cache.cells_of(1).tolist() == [4, 5, 6, 7]
    with pytest.raises(CacheFull):  # the second sequence is still at 8, and sees 5 to 7
        cache.find_slot(3)


def test_what_is_forgotten_in_the_middle_is_noticed() -> None:
    layers = AttentionLayers((0,), 16, 16, 2, window=4)
    cache = KVCache(layers, 12, F16, F16, n_seq_max=2)
    cache.share(1, add(cache, 4))
    add(cache, 8)
    assert cache.sees_all(0, 7)
    add(cache, 4)
    held = cache.positions_of(0, cache.cells_of(0)).tolist()
    assert sorted(held) == [1, 2, 3, *range(7, 16)]  # 1 to 3 for the second sequence's sake
    assert [n for n in range(17) if cache.sees_all(0, n)] == [0, 4, *range(10, 17)]


@pytest.mark.parametrize(
    ("type", "message"),
    [
        (TYPES["q6_K"], "type_k is q6_K: K and V may be f32, f16"),
        (TYPES["i32"], "type_k is i32: K and V may be f32, f16"),
        (Q8_0, "type_k is q8_0, in blocks of 32: the head size 16 is not a multiple"),
    ],
)
def test_types_that_do_not_work(type: TensorType, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        make(type_k=type)
