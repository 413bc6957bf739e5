"""flash_attn_ext over lists on the CPU: the bits of the masked form, whatever lies around."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import IndexOutOfRange, ops
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.cpu.builder import ScratchPool
from ggmlpy.backends.cpu.isa import available
from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.cpu.conftest import VECTOR_ISAS
from tests.cpu.running import run
from tests.cpu.test_attention import CACHE_TYPES, cache

Floats = NDArray[Any]
BEST = available()[0].name
SCALE = 0.2


def attend(
    q: Floats, k: Floats, v: Floats, bias: Floats | None, types: str,
    lists: tuple[Any, Any] | None = None, **params: Any,
) -> Tensor:  # fmt: skip
    """q [S, n_q, Hq, D], k and v [S_k, N, Hk, D], bias [S, 1, n_q, n], lists (cells, seen)."""
    mask = None if bias is None else from_numpy(bias.astype(np.float16))
    named = {}
    if lists is not None:
        cells, seen = (from_numpy(np.array(values, np.int32)) for values in lists)
        named = {"cells": cells, "seen": seen}
    type_k, type_v = (types.split("/") * 2)[:2]
    y = ops.flash_attn_ext(
        ops.permute(from_numpy(q.astype(np.float32)), 0, 2, 1, 3),
        cache(k, type_k), cache(v, type_v), mask, SCALE,
        params.get("max_bias", 0.0), params.get("softcap", 0.0), **named,
    )  # fmt: skip
    sinks = params.get("sinks")
    return ops.flash_attn_ext_add_sinks(y, None if sinks is None else from_numpy(sinks))


@st.composite
def scenes(draw: st.DrawFn) -> dict[str, Any]:
    """What a query sees of a cache, and what is computed beside it."""
    n_q = draw(st.sampled_from([1, 2, 7, 130]))  # across the number that changes the order of tasks
    type = draw(st.sampled_from(["f32", "f16", "bf16", "q8_0", "f16/q4_0"]))
    return {
        "n_seen": draw(st.integers(0, 100) | st.sampled_from([255, 256, 257, 511, 520, 769])),
        "n_beside": draw(st.integers(0, 200)),
        "n_streams": draw(st.integers(1, 3)),
        "n_seqs": draw(st.integers(1, 3)),
        "n_q": n_q,
        "query": draw(st.integers(0, n_q - 1)),
        "d": draw(st.sampled_from([8, 24, 64])) if type in ("f32", "f16", "bf16") else 32,
        "heads": draw(st.sampled_from([(1, 1), (4, 2), (3, 3), (8, 1), (5, 1), (12, 4)])),
        "type": type,
        "n_threads": draw(st.integers(1, 5)),
        "masked": draw(st.booleans()),
        "sinks": draw(st.booleans()),
        "params": draw(st.sampled_from([{}, {"max_bias": 8.0}, {"softcap": 3.0}])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(scene=scenes())
def test_a_list_gives_the_bits_of_a_mask(isa: str, scene: dict[str, Any]) -> None:
    """Cells in any order among others that hold NaN, beside queries over other lists."""
    rng = np.random.default_rng(scene["seed"])
    n_seen, n_q, d = (scene[name] for name in ("n_seen", "n_q", "d"))
    (n_head, n_head_kv), n_seqs = scene["heads"], scene["n_seqs"]
    params, bias = dict(scene["params"]), None
    if scene["masked"] or "max_bias" in params:
        bias = np.where(rng.uniform(size=n_seen) < 0.2, -np.inf, rng.standard_normal(n_seen))
    if scene["sinks"]:
        params["sinks"] = rng.standard_normal(n_head).astype(np.float32)
    q = rng.standard_normal((n_seqs, n_q, n_head, d)).astype(np.float32)
    k, v = rng.standard_normal((2, n_seen, n_head_kv, d)).astype(np.float32) * 2
    s, i = rng.integers(n_seqs), scene["query"]
    want = np.zeros((n_head, d), np.float32)
    if n_seen > 0:
        shown = None if bias is None else bias[None, None, None]
        alone = attend(q[None, None, s, i], k[None], v[None], shown, scene["type"], **params)
        want = run(alone, isa, 1).reshape(n_head, d)

    n_max, n_streams = n_seen + scene["n_beside"], scene["n_streams"]
    n_kv = n_max // n_streams + 1
    floats = "q" not in scene["type"]
    shape = (2, n_streams * n_kv, n_head_kv, d)
    keys, values = np.full(shape, np.nan if floats else 1e3, np.float32)
    used = rng.permutation(n_streams * n_kv)[:n_seen]
    keys[used], values[used] = k, v
    cells = rng.integers(0, n_streams * n_kv, (3, n_max + 1))
    first = rng.integers(0, n_max + 1 - n_seen + 1)
    cells[1] = -1  # but for what is seen of it
    cells[1, first : first + n_seen] = used
    seen = np.stack([rng.integers(0, 3, (n_seqs, n_q)), *rng.integers(0, n_max // 2 + 1,
                     (2, n_seqs, n_q))], axis=-1)  # fmt: skip
    seen[..., 0] &= 2
    seen[s, i] = 1, first, n_seen
    mask = None
    if bias is not None:
        mask = rng.standard_normal((n_seqs, 1, n_q, n_max + 1))
        mask[s, 0, i, :n_seen] = bias
    keys, values = (t.reshape(n_streams, n_kv, n_head_kv, d) for t in (keys, values))
    y = attend(q, keys, values, mask, scene["type"], (cells, seen), **params)
    got = run(y, isa, scene["n_threads"]).reshape(n_seqs, n_q, n_head, d)[s, i]
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("types", [f"{k}/{v}" for k in CACHE_TYPES for v in CACHE_TYPES])
def test_every_pair_of_cache_types(types: str) -> None:
    """Each query its own cells of two streams, in the order of a mask that shows the same."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((2, 3, 4, 64)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 75, 2, 64)).astype(np.float32)
    mask = np.where(rng.uniform(size=(2, 1, 3, 75)) < 0.3, -np.inf, 0.0)
    cells = np.full((6, 75), 2**31 - 1)
    seen = np.zeros((2, 3, 3), np.int32)
    for s, i in np.ndindex(2, 3):
        shown = np.flatnonzero(mask[s, 0, i] == 0) + 75 * s
        cells[3 * s + i, 5 : 5 + len(shown)] = shown[:70]
        seen[s, i] = 3 * s + i, 5, len(shown)
    want = run(attend(q, k, v, mask, types), BEST, 2)
    got = run(attend(q, k, v, None, types, (cells, seen)), BEST, 2)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("type", ["f16", "q4_0"])
@pytest.mark.parametrize("n_seqs", [1, 5, 40])
def test_threads_share_the_chunks_of_long_lists(isa: str, type: str, n_seqs: int) -> None:
    """Lists of very different lengths: the longest is split, however many queries there are."""
    rng = np.random.default_rng(8)
    q = rng.standard_normal((n_seqs, 1, 6, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 2077, 2, 32)).astype(np.float32)
    cells = rng.integers(0, 2077, (1, 3000))
    lengths = np.resize([2900, 300, 0, 1, 700], n_seqs)
    lengths[5:] //= 10
    seen = np.stack([np.zeros(n_seqs), np.arange(n_seqs), lengths], axis=-1)[:, None]
    y = attend(q, k, v, None, type, (cells, seen))
    alone = run(y, isa, 1)
    for n_threads in (2, 5, 16, 16):
        assert run(y, isa, n_threads).tobytes() == alone.tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_a_prompt_at_once_or_token_by_token(isa: str) -> None:
    """Causal by its numbers of entries: 140 queries give what 140 nodes of one query give."""
    rng = np.random.default_rng(5)
    n = 140
    q = rng.standard_normal((1, n, 4, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, n, 2, 32)).astype(np.float32)
    cells = rng.permutation(n)[None]
    seen = [[[0, max(0, i - 99), min(i + 1, 100)] for i in range(n)]]  # a window of 100
    together = run(attend(q, k, v, None, "f16", (cells, seen)), isa, 3).reshape(n, -1)
    for i in (0, 1, 15, 16, 64, 99, 100, n - 1):
        one = attend(q[:, i : i + 1], k, v, None, "f16", (cells, [[seen[0][i]]]))
        assert run(one, isa, 1).tobytes() == together[i].tobytes()


def test_queries_share_a_row_of_a_mask() -> None:
    """Two sequences under one row of the mask see lists and numbers of their own."""
    rng = np.random.default_rng(6)
    q = np.repeat(rng.standard_normal((1, 1, 2, 16)), 3, axis=0)
    k, v = rng.standard_normal((2, 1, 80, 2, 16)).astype(np.float32)
    cells, seen = rng.integers(0, 80, (2, 70)), [[[0, 0, 70]], [[1, 0, 70]], [[1, 0, 69]]]
    mask = np.where(rng.uniform(size=(1, 1, 1, 70)) < 0.4, -np.inf, 0.5)
    mask[..., -1] = 0
    together = run(attend(q, k, v, mask, "f32", (cells, seen)), BEST, 1)
    for s in range(3):
        apart = run(attend(q[s : s + 1], k, v, mask, "f32", (cells, seen[s : s + 1])), BEST, 1)
        assert together[s].tobytes() == apart.tobytes()
    assert len({row.tobytes() for row in together}) == 3


# --- what does not exist --------------------------------------------------------------------------


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize(
    ("seen", "value"),
    [
        ([2, 0, 1], 2), ([-1, 0, 0], -1), ([0, -1, 2], -1), ([0, 301, 0], 301), ([0, 1, 300], 300),
        ([0, 2, -1], -1), ([0, 2**31 - 1, 2**31 - 1], 2**31 - 1),
        ([0, 300, 2**31 - 1], 2**31 + 298), ([0, 0, 300], 22),
        ([0, 0, 9], -1), ([0, 9, 3], 22), ([1, 200, 100], 2**31 - 1),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_reported(
    isa: str, n_threads: int, seen: list[int], value: int
) -> None:
    """A list, an entry, a cell: named, and nothing is read."""
    q = np.ones((1, 3, 2, 16), np.float32)
    k = np.ones((2, 11, 2, 16), np.float32)
    cells = np.zeros((2, 300), np.int64)
    cells[0, 8], cells[0, 11], cells[1, 299] = -1, 22, 2**31 - 1
    if seen == [0, 0, 300]:
        cells[0, 8] = 0
    y = attend(q, k, k, None, "f32", (cells, [[[1, 0, 4], seen, [1, 3, 9]]]))
    y.name = "kqv_out"
    with pytest.raises(IndexOutOfRange, match=f"kqv_out .* index {value} is out of range"):
        run(y, isa, n_threads)


def test_more_entries_than_the_mask_has_are_reported() -> None:
    q = np.ones((1, 1, 2, 16), np.float32)
    k = np.ones((1, 40, 2, 16), np.float32)
    cells = np.arange(40)[None]
    mask = np.zeros((1, 1, 1, 30))
    run(attend(q, k, k, mask, "f32", (cells, [[[0, 5, 30]]])), BEST, 1)
    with pytest.raises(IndexOutOfRange, match="index 31 is out of range"):
        run(attend(q, k, k, mask, "f32", (cells, [[[0, 5, 31]]])), BEST, 1)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("cell", [-1, 3, 999])
def test_a_cell_that_the_mask_hides_need_not_exist(cell: int, n_threads: int) -> None:
    rng = np.random.default_rng(7)
    q = rng.standard_normal((1, 1, 2, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 3, 2, 16)).astype(np.float32)
    mask = np.array([[[[0, -np.inf, 0]]]])
    hidden = attend(q, k, v, mask, "f32", ([[0, cell, 2]], [[[0, 0, 3]]]))
    visible = attend(q, k, v, mask[..., ::2], "f32", ([[0, 2]], [[[0, 0, 2]]]))
    assert run(hidden, BEST, n_threads).tobytes() == run(visible, BEST, 1).tobytes()
    for bias in (None, np.zeros((1, 1, 1, 3))):
        y = attend(q, k, v, bias, "f32", ([[0, cell, 2]], [[[0, 0, 3]]]))
        with pytest.raises(IndexOutOfRange, match=f"index {cell} is out of range"):
            run(y, BEST, n_threads)


# --- fewer queries than the node has room for -----------------------------------------------------


class GuardedPool(ScratchPool):
    """Memory of exactly the sizes that are asked for, between guards."""

    def __init__(self) -> None:
        super().__init__()
        self.guards: list[NDArray[np.uint8]] = []

    def take(self, use: str, n_bytes: int) -> HostBuffer:
        whole = aligned_bytes(n_bytes + 512)
        whole[:] = 0xA5
        whole[256 : 256 + n_bytes] = 0
        self.guards += [whole[:256], whole[256 + n_bytes :]]
        return HostBuffer(whole[256 : 256 + n_bytes])

    def check(self) -> None:
        for guard in self.guards:
            assert (guard == 0xA5).all()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n_threads", [1, 3, 40])
@pytest.mark.parametrize("form", ["lists", "prompt lists", "lists and mask", "mask"])
def test_fewer_queries_when_it_runs(isa: str, n_threads: int, form: str) -> None:
    """A record with less than the node's queries and sequences: the bits of a node of that shape.
    Rows of no query are not written, and scratch memory is large enough for any of them."""
    rng = np.random.default_rng(9)
    n_q, n_seqs, n_kv = 131, 2, 600
    q = rng.standard_normal((n_seqs, n_q, 8, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, n_seqs, n_kv, 2, 16)).astype(np.float32)
    mask = np.where(rng.uniform(size=(n_seqs, 1, n_q, n_kv)) < 0.05, -np.inf, 0.0)
    cells = rng.integers(0, n_seqs * n_kv, (3, n_kv))
    first = rng.integers(0, n_kv, (n_seqs, n_q))
    which, n = rng.integers(0, 3, first.shape), rng.integers(0, n_kv - first + 1)
    seen = np.stack([which, first, n], axis=-1)
    seen[0, 0] = 0, 0, n_kv
    if form == "prompt lists":
        seen[...] = 0
        seen[..., 2] = n_kv - n_q + 1 + np.arange(n_q)

    def node(n_query: int, n_seq: int) -> Tensor:
        lists = (cells, seen[:n_seq, :n_query]) if "lists" in form else None
        bias = mask[:n_seq, :, :n_query] if "mask" in form else None
        streams = slice(n_seqs if lists else n_seq)
        return attend(q[:n_seq, :n_query], k[streams], v[streams], bias, "f16", lists)

    y = node(n_q, n_seqs)
    out = HostBuffer(aligned_bytes(y.spec.n_bytes))
    places = {y: Place(out, 0)}
    for source in y.src:
        assert source.root.place is not None
        places[source] = Place(source.root.place.buffer, source.view_offs)
    pool = GuardedPool()
    cpu = CpuBackend(n_threads, isa)
    cpu._pool = pool
    plan = cpu.plan([Step.of(y)], places)
    assert isinstance(plan, CpuPlan)
    record = plan._plan.record(0)
    for n_query, n_seq in ((1, 1), (1, 2), (11, 1), (128, 1), (127, 2), (131, 2)):
        record["q"]["ne1"], record["q"]["ne3"] = n_query, n_seq
        record["y"]["ne2"], record["y"]["ne3"] = n_query, n_seq
        out.data[:] = 0xA5
        plan.submit()
        plan.check()
        rows = out.data.view(np.float32).reshape(n_seqs, n_q, -1)
        want = run(node(n_query, n_seq), isa, 2).reshape(n_seq, n_query, -1)
        assert rows[:n_seq, :n_query].tobytes() == want.tobytes()
        rows[:n_seq, :n_query].view(np.uint8)[...] = 0xA5
        assert (out.data == 0xA5).all()
        pool.check()


@pytest.mark.parametrize("sink", [None, 1.0, -math.inf])
def test_nothing_to_see_gives_zeros(sink: float | None) -> None:
    q = np.ones((1, 2, 4, 16), np.float32)
    k = np.full((1, 40, 2, 16), np.nan, np.float32)
    k[0, 7] = 1
    sinks = None if sink is None else np.full(4, sink, np.float32)
    y = attend(q, k, k, None, "f32", ([[9, 7]], [[[0, 1, 1], [0, 0, 0]]]), sinks=sinks)
    got = run(y, BEST, 2)
    assert (got[0] != 0).all()
    assert (got[1] == 0).all()
