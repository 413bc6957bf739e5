from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import CacheFull, Unsupported
from ggmlpy.kv_cache import KVCache
from ggmlpy.models.memory import AttentionLayers
from ggmlpy.types import F16, F32, Q8_0, TYPES, TensorType

LAYERS = AttentionLayers((0, 1), n_embd_head_k=16, n_embd_head_v=16, n_head_kv=2)


def make(n_ctx: int = 300, type_k: TensorType = F16, type_v: TensorType = F16) -> KVCache:
    return KVCache(LAYERS, n_ctx, type_k, type_v)


def add(cache: KVCache, n_tokens: int) -> np.ndarray:
    cells = cache.find_cells(n_tokens)
    start = cache.next_position()
    cache.occupy(cells, np.arange(start, start + n_tokens, dtype=np.int32))
    return cells


def test_leaves_have_a_stream_dimension() -> None:
    cache = KVCache(LAYERS, 300, F16, F32, n_stream=3)
    assert cache.k[1].ne == (32, 512, 3, 1)
    assert cache.v[0].type is F32
    assert cache.n_bytes == 2 * 32 * 512 * 3 * (2 + 4)


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
    with pytest.raises(CacheFull, match="3 more tokens do not fit: 298 of n_ctx = 300"):
        cache.find_cells(3)
    assert cache.n_used() == 298
    assert len(add(cache, 2)) == 2


def test_holes_are_filled_first() -> None:
    cache = make()
    add(cache, 10)
    cache.remove(3, 6)
    assert cache.n_used() == 7
    assert add(cache, 4).tolist() == [3, 4, 5, 10]
    assert cache.next_position() == 14


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 40)), max_size=20))
def test_counts_agree_with_a_plain_model(steps: list[tuple[bool, int, int]]) -> None:
    """Against a dict from cell to position, through any adds and removals."""
    cache, model = make(200), dict[int, int]()
    for is_add, n, start in steps:
        if is_add and len(model) + n <= 200:
            first = cache.next_position()
            model.update({int(c): first + i for i, c in enumerate(add(cache, n))})
        elif not is_add:
            cache.remove(start, start + n)
            model = {c: p for c, p in model.items() if not start <= p < start + n}
        assert cache.n_used() == len(model)
        assert cache.next_position() == max(model.values(), default=-1) + 1
        mask = np.ones((1, cache.n_kv()), np.float16)
        at = cache.next_position()
        cache.fill_mask(mask, np.array([at], np.int32))
        assert set(np.flatnonzero(mask[0] == 0)) == set(model)


def test_mask_is_causal() -> None:
    cache = make()
    add(cache, 5)
    mask = np.empty((3, 256), np.float16)
    cache.fill_mask(mask, np.array([2, 3, 4], np.int32))
    for row, last in zip(mask, (2, 3, 4), strict=True):
        assert (row[: last + 1] == 0).all()
        assert np.isneginf(row[last + 1 :]).all()


@pytest.mark.parametrize(
    ("type", "message"),
    [
        (TYPES["q6_K"], "type_k is q6_K: K and V cannot be written"),
        (TYPES["i32"], "type_k is i32: K and V cannot be written"),
        (Q8_0, "type_k is q8_0, in blocks of 32: the head size 16 is not a multiple"),
    ],
)
def test_types_that_do_not_work(type: TensorType, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        make(type_k=type)
