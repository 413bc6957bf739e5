"""flash_attn_ext against attention spelt out in einsum, and against the graph of single ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import IndexOutOfRange, ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.ops.softmax import alibi_slopes
from tests.ops.values import close, integers, leaf, run, uniform

INF = math.inf
Array = NDArray[Any]


def spelt_out(
    q: Array, k: Array, v: Array, mask: Array | None, sinks: Array | None, **p: float
) -> Array:
    """The whole score matrix at once, in numpy order; masked cells are taken out beforehand."""
    n_head, n_query, n_seq = q.shape[1], q.shape[2], q.shape[0]
    group = n_head // k.shape[1]
    k, v = (np.repeat(t.astype(np.float64), group, axis=1) for t in (k, v))
    scores = np.einsum("shid,shjd->shij", q.astype(np.float64), k) * p["scale"]
    if p.get("softcap"):
        scores = p["softcap"] * np.tanh(scores / p["softcap"])
    if mask is not None:
        rows = mask[:, :, :n_query].astype(np.float64)
        heads = np.arange(n_head) % mask.shape[1]
        seqs = np.arange(n_seq) % mask.shape[0]
        slopes = alibi_slopes(n_head, p.get("max_bias", 0.0))
        scores = scores + slopes[:, None, None] * rows[seqs][:, heads]
    powers = np.exp(scores)  # inputs are small
    total = powers.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks)[:, None, None]
    weights = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    result: Array = np.einsum("shij,shjd->sihd", weights, v)
    return result


def flash(
    q: Array, k: Array, v: Array, mask: Array | None, sinks: Array | None, **p: float
) -> Array:
    m = None if mask is None else leaf(mask)
    y = ops.flash_attn_ext(
        leaf(q), leaf(k), leaf(v), m, p["scale"], p.get("max_bias", 0.0), p.get("softcap", 0.0)
    )
    if sinks is not None:
        assert ops.flash_attn_ext_add_sinks(y, leaf(sinks)) is y
    return run(y)


def make(n_query: int = 4, heads: int = 6, heads_kv: int = 2, seqs: int = 2) -> tuple[Array, ...]:
    return (
        uniform(1, 16, n_query, heads, seqs),
        uniform(2, 16, 11, heads_kv, seqs).astype(np.float16),
        uniform(3, 8, 11, heads_kv, seqs).astype(np.float16),
    )


@pytest.mark.parametrize("n_query", [1, 4])
@pytest.mark.parametrize("heads_kv", [1, 2, 6])
@pytest.mark.parametrize(("mask_heads", "mask_seqs"), [(1, 1), (3, 2), (6, 1)])
@pytest.mark.parametrize(
    "params",
    [{}, {"max_bias": 8.0}, {"softcap": 5.0}, {"sinks": 1}, {"max_bias": 8.0, "sinks": 1}],
)
def test_against_einsum(
    n_query: int, heads_kv: int, mask_heads: int, mask_seqs: int, params: dict[str, float]
) -> None:
    q, k, v = make(n_query, heads_kv=heads_kv)
    mask = uniform(4, 11, n_query + 1, mask_heads, mask_seqs).astype(np.float16)
    mask[uniform(5, 11, n_query + 1, mask_heads, mask_seqs) < -0.3] = -INF
    params = dict(params, scale=0.25)
    sinks = uniform(6, 6).reshape(-1) if params.pop("sinks", 0) else None
    want = spelt_out(q, k, v, mask, sinks, **params)
    close(flash(q, k, v, mask, sinks, **params), want)


def test_without_a_mask() -> None:
    q, k, v = make()
    close(flash(q, k, v, None, None, scale=0.25), spelt_out(q, k, v, None, None, scale=0.25))
    sinks = uniform(6, 6).reshape(-1)
    close(flash(q, k, v, None, sinks, scale=0.25), spelt_out(q, k, v, None, sinks, scale=0.25))


def test_the_two_paths_agree() -> None:
    """mul_mat, soft_max_ext, mul_mat: what a model builds without flash attention."""
    q, k, v = (leaf(t.astype(np.float32)) for t in make())
    values = uniform(4, 11, 4, 1, 2)
    values[values < -0.5] = -INF
    values[:, :, 1] = -INF
    mask = leaf(values.astype(np.float16))
    fused = ops.flash_attn_ext(q, k, v, mask, 0.25, 8.0, 0.0)
    weights = ops.soft_max_ext(ops.mul_mat(k, q), mask, 0.25, 8.0)
    single = ops.mul_mat(ops.cont(ops.transpose(v)), weights)  # [Dv, n_q, H, S]
    close(run(fused), run(ops.permute(single, 0, 2, 1, 3)))
    np.testing.assert_array_equal(run(fused)[:, 1], 0)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_query_that_sees_nothing_gives_zero(with_sinks: bool) -> None:
    q, k, v = make()
    mask = np.zeros((1, 1, 4, 11), np.float16)
    mask[:, :, 2] = -INF
    sinks = np.zeros(6, np.float32) if with_sinks else None
    got = flash(q, k, v, mask, sinks, scale=0.25)
    np.testing.assert_array_equal(got[:, 2], 0)
    assert (got[:, [0, 1, 3]] != 0).all()


@pytest.mark.parametrize("poison", [math.nan, INF])
def test_masked_keys_and_values_have_no_effect(poison: float) -> None:
    q, k, v = make()
    mask = np.zeros((2, 1, 4, 11), np.float16)
    mask[0, ..., 7:] = -INF
    mask[1, ..., 3:6] = -INF
    clean = flash(q, k, v, mask, None, scale=0.25)
    for t in (k, v):
        t[0, :, 7:] = poison
        t[1, :, 3:6] = poison
    np.testing.assert_array_equal(flash(q, k, v, mask, None, scale=0.25), clean)


def test_poison_that_one_query_sees_is_its_own() -> None:
    q, k, v = make()
    mask = np.zeros((1, 1, 4, 11), np.float16)
    mask[0, 0, :3, 10] = -INF
    clean = flash(q, k, v, mask, None, scale=0.25)
    v[:, :, 10] = math.nan
    got = flash(q, k, v, mask, None, scale=0.25)
    np.testing.assert_array_equal(got[:, :3], clean[:, :3])
    assert np.isnan(got[:, 3]).all()


def test_permuted_caches() -> None:
    """As a model has them: K and V [D, H, n_kv] seen as [D, n_kv, H]."""
    q, k, v = make()

    def cache(t: Array) -> Tensor:
        return ops.permute(leaf(np.ascontiguousarray(t.swapaxes(1, 2))), 0, 2, 1, 3)

    y = ops.flash_attn_ext(leaf(q), cache(k), cache(v), None, 0.25, 0.0, 0.0)
    np.testing.assert_array_equal(run(y), flash(q, k, v, None, None, scale=0.25))


def test_quantised_keys_are_read_by_value() -> None:
    v = leaf(make()[2])
    k8 = ops.cast(ops.cast(leaf(uniform(7, 64, 11, 2, 2)), "q8_0"), "f32")
    q64 = leaf(uniform(8, 64, 4, 6, 2))
    floats = ops.flash_attn_ext(q64, k8, v, None, 0.25, 0.0, 0.0)
    packed = ops.cast(leaf(uniform(7, 64, 11, 2, 2)), "q8_0")
    np.testing.assert_array_equal(
        run(ops.flash_attn_ext(q64, packed, v, None, 0.25, 0.0, 0.0)), run(floats)
    )


def test_source_names_say_which_are_there() -> None:
    q, k, v = (leaf(t) for t in make())
    sinks = leaf(np.zeros(6, np.float32))
    y = ops.flash_attn_ext_add_sinks(ops.flash_attn_ext(q, k, v, None, 0.25, 0, 0), sinks)
    assert y.op is not None
    assert y.op.source_names(len(y.src)) == ("q", "k", "v", "sinks")
    assert ops.flash_attn_ext_add_sinks(y, None) is y
    x = leaf(uniform(9, 11, 4, 6, 2))
    mask = leaf(np.zeros((1, 1, 4, 11), np.float16))
    s = ops.soft_max_add_sinks(ops.soft_max_ext(x, mask, 1, 0), sinks)
    assert s.op is not None
    assert s.op.source_names(len(s.src)) == ("x", "mask", "sinks")


# --- over lists -----------------------------------------------------------------------------------


def in_cache(t: Array) -> Tensor:
    """[S, H, n_kv, D] as a cache holds it: a cell's heads side by side, streams in a row."""
    return ops.permute(leaf(np.ascontiguousarray(t.swapaxes(1, 2))), 0, 2, 1, 3)


@pytest.mark.parametrize(
    "params", [{}, {"softcap": 5.0}, {"sinks": 1}, {"max_bias": 8.0, "sinks": 1}]
)
def test_lists_against_einsum(params: dict[str, float]) -> None:
    """Each query with what it sees gathered beforehand, the place in the list as ALiBi's bias."""
    q, k, v = make(n_query=2)
    params = dict(params, scale=0.25)
    sinks = uniform(6, 6).reshape(-1) if params.pop("sinks", 0) else None
    cells = [[20, 3, 11, 0, 7, -1], [10, 9, 21, 9, 99, 99]]  # 11 cells a stream
    seen = [[[0, 0, 5], [1, 1, 3]], [[0, 2, 1], [1, 0, 4]]]
    mask = uniform(4, 6, 2, 1, 2).astype(np.float16)
    mask[0, 0, 0, 1] = -INF
    y = ops.flash_attn_ext(
        leaf(q), in_cache(k), in_cache(v), leaf(mask), 0.25, params.get("max_bias", 0.0),
        params.get("softcap", 0.0), cells=integers(*cells), seen=integers(*seen),
    )  # fmt: skip
    if sinks is not None:
        y = ops.flash_attn_ext_add_sinks(y, leaf(sinks))
        assert y.op is not None
        names = ("q", "k", "v", "mask", "cells", "seen", "sinks")
        assert y.op.source_names(len(y.src)) == names
    got = run(y)
    for s, i in np.ndindex(2, 2):
        i_list, first, n = seen[s][i]
        at = np.array(cells[i_list][first : first + n])
        keys, values = (t[at // 11, :, at % 11].swapaxes(0, 1)[None] for t in (k, v))
        bias = mask[s : s + 1, :, i : i + 1, :n]
        want = spelt_out(q[s : s + 1, :, i : i + 1], keys, values, bias, sinks, **params)
        close(got[s, i], want[0, 0])


def test_lists_of_all_cells_are_what_a_mask_shows() -> None:
    q, k, v = make(seqs=1)
    mask = np.where(uniform(4, 11, 4) < 0, -INF, 0).astype(np.float16)
    want = flash(q, k, v, mask, None, scale=0.25)
    shown = [np.flatnonzero(row == 0) for row in mask[0, 0]]
    cells = np.full((4, 11), -1, np.int32)
    for row, numbers in zip(cells, shown, strict=True):
        row[11 - len(numbers) :] = numbers
    seen = [[i, 11 - len(numbers), len(numbers)] for i, numbers in enumerate(shown)]
    y = ops.flash_attn_ext(
        leaf(q), leaf(k), leaf(v), None, 0.25, 0.0, 0.0, cells=leaf(cells), seen=integers(*seen)
    )
    np.testing.assert_array_equal(run(y), want)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([2, 0, 1], "seen names list 2, there are 2"),
        ([-1, 0, 0], "seen names list -1, there are 2"),
        ([0, -1, 2], "entries -1 to 0 of a list of 3"),
        ([0, 1, 3], "entries 1 to 3 of a list of 3"),
        ([0, 2, -1], "entries 2 to 0 of a list of 3"),
        ([1, 0, 3], "cells names 22: it must be from 0 to 21"),
        ([1, 0, 2], "cells names -1: it must be from 0 to 21"),
    ],
)
def test_what_does_not_exist_is_refused(seen: list[int], message: str) -> None:
    q, k, v = make(n_query=1, seqs=1)
    _, k, v = make()
    cells = integers([21, 0, 1], [-1 if seen[2] == 2 else 1, 21, 22])
    y = ops.flash_attn_ext(
        leaf(q), in_cache(k), in_cache(v), None, 0.25, 0.0, 0.0, cells=cells, seen=integers(seen)
    )
    with pytest.raises(IndexOutOfRange, match=message):
        run(y)


@pytest.mark.parametrize("cell", [-1, 11, 999])
def test_a_cell_that_the_mask_hides_need_not_exist(cell: int) -> None:
    q, k, v = make(n_query=1, seqs=1)

    def over(cells: list[int], bias: list[float] | None) -> Tensor:
        mask = None if bias is None else leaf(np.array(bias, np.float16).reshape(1, 1, 1, -1))
        return ops.flash_attn_ext(
            leaf(q), in_cache(k), in_cache(v), mask, 0.25, 0.0, 0.0,
            cells=integers(cells), seen=integers([0, 0, len(cells)]),
        )  # fmt: skip

    want = run(over([0, 2], None))
    np.testing.assert_array_equal(run(over([0, cell, 2], [0, -INF, 0])), want)
    for bias in (None, [0.0, 0.0, 0.0]):
        with pytest.raises(IndexOutOfRange, match=f"names {cell}: it must be from 0 to 10"):
            run(over([0, cell, 2], bias))
