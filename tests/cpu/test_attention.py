"""flash_attn_ext on the CPU: against float64, and its promise that layout changes no bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cpu.isa import available
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from tests.cpu.conftest import VECTOR_ISAS
from tests.cpu.running import run

Floats = NDArray[Any]
BEST = available()[0].name
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


def cache(values: Floats, type: str) -> Tensor:
    """Rows [S, n_kv, Hk, D], a token's heads side by side, as [D, n_kv, Hk, S]."""
    raw = from_float(np.ascontiguousarray(values, np.float32), type_of(type))
    leaf = from_bytes(raw.reshape(-1), type, values.shape[::-1])
    return ops.permute(leaf, 0, 2, 1, 3)


def attention(
    q: Floats, k: Floats, v: Floats, mask: Floats | None, type: str = "f16", **params: Any
) -> Tensor:
    """q [S, n_q, Hq, D], k and v [S, n_kv, Hk, D], mask [S, 1, n_q, n_kv] -> [Dv, Hq, n_q, S]."""
    wide = ops.permute(from_numpy(q.astype(np.float32)), 0, 2, 1, 3)
    masked = None if mask is None else from_numpy(mask.astype(np.float16))
    scale = params.get("scale", 1 / math.sqrt(q.shape[-1]))
    types = type.split("/") * 2
    return ops.flash_attn_ext(
        wide,
        cache(k, types[0]),
        cache(v, types[1]),
        masked,
        scale,
        params.get("max_bias", 0.0),
        params.get("softcap", 0.0),
    )


def shape4(y: Floats, n_dims: int = 4) -> Floats:
    return y.reshape((1,) * (n_dims - y.ndim) + y.shape)


def by_definition(q: Floats, k: Floats, v: Floats, mask: Floats) -> Floats:
    """The plain formula in float64 -> [S, n_q, Hq, Dv]."""
    k, v = (np.repeat(t.astype(np.float64), q.shape[2] // k.shape[2], axis=2) for t in (k, v))
    scores = np.einsum("sqhd,skhd->shqk", q.astype(np.float64), k) / math.sqrt(q.shape[-1])
    scores = scores + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    y: Floats = np.einsum("shqk,skhd->sqhd", weights, v)
    return y


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize(
    ("d", "dv"), [(8, 8), (5, 3), (16, 17), (65, 33), (80, 80), (128, 128), (576, 512)]
)
@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (3, 1), (6, 2), (7, 1), (16, 2)])
def test_close_to_float64(isa: str, d: int, dv: int, heads: tuple[int, int]) -> None:
    rng = np.random.default_rng(d + heads[0])
    n_q, n_kv = 3, 75
    q = rng.standard_normal((1, n_q, heads[0], d)).astype(np.float32)
    k = rng.standard_normal((1, n_kv, heads[1], d)).astype(np.float32)
    v = rng.standard_normal((1, n_kv, heads[1], dv)).astype(np.float32)
    mask = np.where(rng.uniform(size=(1, 1, n_q, n_kv)) < 0.3, -np.inf, 0.0)
    mask[..., 0] = 0
    got = shape4(run(attention(q, k, v, mask, "f32"), isa, 2))
    want = by_definition(q, k, v, mask)
    assert np.abs(got - want).max() < 4e-6 * np.abs(want).max()


@pytest.mark.parametrize("types", [f"{k}/{v}" for k in CACHE_TYPES for v in CACHE_TYPES])
def test_every_pair_of_cache_types(types: str) -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((2, 3, 4, 64)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 37, 2, 64)).astype(np.float32)
    mask = np.zeros((2, 1, 3, 37))
    got = run(attention(q, k, v, mask, types), BEST, 2)
    stored = [
        to_float(from_float(values, type_of(type)), type_of(type))
        for values, type in zip((k, v), types.split("/"), strict=True)
    ]
    want = by_definition(q, stored[0], stored[1], mask)
    assert np.abs(got - want).max() < 4e-6 * np.abs(want).max()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_values_inside_keys(isa: str) -> None:
    """MLA keeps v as the first columns of k."""
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, 2, 4, 72)).astype(np.float32)
    rows = rng.standard_normal((1, 45, 1, 72)).astype(np.float32)
    k = cache(rows, "f32")
    v = ops.view_4d(k, 64, 45, 1, 1, *k.nb[1:], 0)
    wide = ops.permute(from_numpy(q), 0, 2, 1, 3)
    y = ops.flash_attn_ext(wide, k, v, None, 1 / math.sqrt(72), 0.0, 0.0)
    want = by_definition(q, rows, rows[..., :64], np.zeros((1, 1, 2, 45)))
    assert np.abs(shape4(run(y, isa, 2)) - want).max() < 4e-6


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("sink", [None, 1.0, -math.inf])
def test_nothing_to_see_gives_zeros(isa: str, sink: float | None) -> None:
    rng = np.random.default_rng(3)
    q = rng.standard_normal((1, 4, 4, 16)).astype(np.float32)
    k = np.full((1, 40, 2, 16), np.nan, np.float32)
    mask = np.full((1, 1, 4, 40), -np.inf)
    k[0, 7], mask[0, 0, 2, 7] = 1, 0
    y = attention(q, k, k, mask, "f32")
    if sink is not None:
        y = ops.flash_attn_ext_add_sinks(y, from_numpy(np.full(4, sink, np.float32)))
    got = shape4(run(y, isa, 2))
    assert (got[0, [0, 1, 3]] == 0).all()
    assert (got[0, 2] != 0).all()


def test_scores_that_are_no_numbers_show() -> None:
    """A NaN that a query does see is not hidden; scores of -inf alone give 0, as masks do."""
    q = np.ones((1, 1, 1, 16), np.float32)
    k = np.ones((1, 40, 1, 16), np.float32)
    mask = np.zeros((1, 1, 1, 40))
    seen = k.copy()
    seen[0, 33, 0, 2] = np.nan
    assert np.isnan(run(attention(q, seen, k, mask, "f32"), BEST, 1)).all()
    assert np.isnan(run(attention(q, k, seen, mask, "f32"), BEST, 1)).sum() == 1
    assert (run(attention(q, k * -np.inf, k, mask, "f32"), BEST, 1) == 0).all()


# --- layout changes no bit ------------------------------------------------------------------------


def alone(q: Floats, k: Floats, v: Floats, bias: Floats, type: str, isa: str) -> Floats:
    """One query, a cache that holds what it sees and no more, one thread -> [Hq, Dv]."""
    y = attention(q[None, None], k[None], v[None], bias[None, None, None], type)
    return run(y, isa, 1).reshape(q.shape[0], v.shape[-1])


@st.composite
def scenes(draw: st.DrawFn) -> dict[str, Any]:
    """Where a sequence's cells lie in a cache, and what is computed beside it."""
    n_seen = draw(st.integers(1, 100) | st.sampled_from([255, 256, 257, 511, 520, 769]))
    n_q = draw(st.sampled_from([1, 2, 7, 130]))  # across the number that changes the order of tasks
    return {
        "n_seen": n_seen,
        "n_kv": n_seen + draw(st.integers(0, 200)),
        "n_streams": draw(st.integers(1, 3)),
        "n_q": n_q,
        "query": draw(st.integers(0, n_q - 1)),
        "d": draw(st.sampled_from([8, 24, 64])),
        "heads": draw(st.sampled_from([(1, 1), (4, 2), (3, 3), (8, 1), (5, 1), (12, 4)])),
        "type": draw(st.sampled_from(["f32", "f16", "bf16"])),
        "n_threads": draw(st.integers(1, 5)),
        "biased": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(scene=scenes())
def test_layout_changes_no_bit(isa: str, scene: dict[str, Any]) -> None:
    """Cells scattered among masked ones that hold NaN, streams, queries, threads, padding."""
    rng = np.random.default_rng(scene["seed"])
    n_seen, n_kv, n_q, d = (scene[name] for name in ("n_seen", "n_kv", "n_q", "d"))
    n_head, n_head_kv = scene["heads"]
    s, i = rng.integers(scene["n_streams"]), scene["query"]
    q = rng.standard_normal((scene["n_streams"], n_q, n_head, d)).astype(np.float32)
    k, v = rng.standard_normal((2, n_seen, n_head_kv, d)).astype(np.float32) * 2
    bias = rng.standard_normal(n_seen) if scene["biased"] else np.zeros(n_seen)
    want = alone(q[s, i], k, v, bias, scene["type"], isa)

    cells = np.sort(rng.choice(n_kv, n_seen, replace=False))
    keys, values = np.full((2, scene["n_streams"], n_kv, n_head_kv, d), np.nan, np.float32)
    keys[s, cells], values[s, cells] = k, v
    mask = np.full((scene["n_streams"], 1, n_q, n_kv), -np.inf)
    others = rng.uniform(size=mask.shape[2:])[:, cells] < 0.5
    mask[s, 0][:, cells] = np.where(others, -np.inf, rng.standard_normal(others.shape))
    mask[s, 0, i, cells] = bias
    y = run(attention(q, keys, values, mask, scene["type"]), isa, scene["n_threads"])
    got = y.reshape(scene["n_streams"], n_q, n_head, d)[s, i]
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("type", ["f16", "q4_0"])
@pytest.mark.parametrize("n_q", [1, 3])
def test_threads_share_the_chunks_of_few_queries(isa: str, type: str, n_q: int) -> None:
    """What 1 thread sums up chunk by chunk, 16 threads give with a chunk or less each, twice."""
    rng = np.random.default_rng(8)
    n_kv = 2077
    q = rng.standard_normal((1, n_q, 6, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, n_kv, 2, 32)).astype(np.float32)
    mask = np.where(rng.uniform(size=(1, 1, n_q, n_kv)) < 0.2, -np.inf, 0.0)
    mask[:, :, -1, 300:] = -np.inf  # fewer chunks than parts
    alone = run(attention(q, k, v, mask, type), isa, 1)
    if type == "f16":
        stored = [values.astype(np.float16).astype(np.float32) for values in (k, v)]
        want = by_definition(q, stored[0], stored[1], mask)
        assert np.abs(shape4(alone) - want).max() < 4e-6 * np.abs(want).max()
    for n_threads in (2, 5, 16, 16):
        got = run(attention(q, k, v, mask, type), isa, n_threads)
        assert got.tobytes() == alone.tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("type", ["f16", "q8_0"])
def test_a_prompt_at_once_or_token_by_token(isa: str, type: str) -> None:
    """Causal: 140 queries in one node give the bits that 140 nodes of one query give."""
    rng = np.random.default_rng(5)
    n = 140
    q = rng.standard_normal((1, n, 4, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, n, 2, 32)).astype(np.float32)
    mask = np.triu(np.full((n, n), -np.inf), 1)[None, None]
    together = shape4(run(attention(q, k, v, mask, type), isa, 3))
    for i in (0, 1, 15, 16, 31, 32, 33, 100, n - 1):
        cut = slice(0, i + 1)
        one = attention(q[:, i : i + 1], k[:, cut], v[:, cut], mask[:, :, i : i + 1, cut], type)
        assert run(one, isa, 1).tobytes() == together[:, i].tobytes()


def test_masks_by_head() -> None:
    """Heads with masks of their own see what theirs shows: as one mask for each, one by one."""
    rng = np.random.default_rng(6)
    q = rng.standard_normal((1, 2, 4, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 50, 2, 16)).astype(np.float32)
    mask = np.where(rng.uniform(size=(1, 2, 2, 50)) < 0.4, -np.inf, 0.0)
    together = shape4(run(attention(q, k, v, mask, "f32"), BEST, 2))
    for m in range(2):
        apart = shape4(run(attention(q, k, v, mask[:, m : m + 1], "f32"), BEST, 1))
        heads = slice(m, None, 2)
        assert together[:, :, heads].tobytes() == apart[:, :, heads].tobytes()
