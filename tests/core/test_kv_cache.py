"""The two parts of a KV cache together, and its store alone."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy.errors import Unsupported
from ggmlpy.graph.types import F16, F32, Q8_0, TYPES, TensorType
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.store import KVStore
from ggmlpy.models.memory import AttentionLayers, KVSizes

LAYERS = AttentionLayers(dict.fromkeys((0, 1), KVSizes(16, 16, 2)))


def test_leaves_have_a_stream_dimension() -> None:
    cache = KVCache(LAYERS, 300, F16, F32, n_seq_max=3, layout="split")
    assert cache.cells.n_stream == 3
    assert cache.store.k[1].ne == (32, 512, 3, 1)
    assert cache.store.v[0].type is F32
    assert cache.store.n_bytes == 2 * 32 * 512 * 3 * (2 + 4)
    shared = KVCache(LAYERS, 300, F16, F32, n_seq_max=3, layout="unified")
    assert (shared.cells.n_stream, shared.store.k[1].ne) == (1, (32, 512, 1, 1))


def filled(n_stream: int) -> tuple[KVStore, list[np.ndarray]]:
    """A store of 256 cells a stream with random values, and these: a leaf [streams, cells, n]."""
    store = KVStore(LAYERS, 200, n_stream, F32, F32)
    rng = np.random.default_rng(0)
    values = [rng.random((n_stream, 256, 32), np.float32) for _ in store.leaves]
    for leaf, each in zip(store.leaves, values, strict=True):
        for stream in range(n_stream):
            rows = each[stream].view(np.uint8)
            store.write_rows(leaf, stream, np.arange(256), rows)
    return store, values


def check(store: KVStore, values: list[np.ndarray]) -> None:
    for leaf, each in zip(store.leaves, values, strict=True):
        np.testing.assert_array_equal(leaf.numpy().reshape(each.shape), each)


def test_rows_are_copied_and_restored() -> None:
    store, values = filled(n_stream=3)
    check(store, values)
    saved = store.save_rows(2, np.array([9, 0, 1]))
    store.copy_rows(0, np.array([4, 5, 7]), 2, np.array([0, 1, 9]))
    copied = [each.copy() for each in values]
    for each in copied:
        each[2, [0, 1, 9]] = each[0, [4, 5, 7]]
    check(store, copied)
    store.restore_rows(saved)
    check(store, values)


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
        KVCache(LAYERS, 300, type, F16)
