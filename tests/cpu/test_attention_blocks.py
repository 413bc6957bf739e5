"""flash_attn_ext of several queries at a time: the bits of each query by itself."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import IndexOutOfRange
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.cpu.isa import available
from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import type_of
from tests.cpu.attention_runs import attention_runs
from tests.cpu.conftest import VECTOR_ISAS, jit_for
from tests.cpu.running import run
from tests.cpu.test_attention_lists import SCALE, attend

Floats = NDArray[Any]
BEST = available()[0].name


def stored(values: Floats, type: str) -> Floats:
    return to_float(from_float(np.ascontiguousarray(values), type_of(type)), type_of(type))


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("type", ["f16", "f32", "bf16", "q8_0"])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (8, 2), (5, 1)])
def test_prompts_are_close_to_float64(isa: str, type: str, heads: tuple[int, int]) -> None:
    """Tokens behind others, each of which sees those up to itself, in cells of any order."""
    rng = np.random.default_rng(heads[0])
    n_q, n_kv, (n_head, n_head_kv), d = 37, 300, heads, 96
    q = rng.standard_normal((n_q, n_head, d)).astype(np.float32)
    k, v = rng.standard_normal((2, n_kv, n_head_kv, d)).astype(np.float32)
    cells = rng.permutation(n_kv)
    n_seen = np.arange(n_kv - n_q + 1, n_kv + 1)
    seen = np.stack([np.zeros(n_q), np.zeros(n_q), n_seen], axis=-1)[None]
    got = run(attend(q[None], k[None], v[None], None, type, (cells[None], seen)), isa, 2)
    k, v = (np.repeat(stored(t, type)[cells], n_head // n_head_kv, axis=1) for t in (k, v))
    scores = SCALE * np.einsum("qhd,khd->hqk", q.astype(np.float64), k)
    scores[:, np.arange(n_kv) >= n_seen[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    want = np.einsum("hqk,khd->qhd", weights, v)
    assert np.abs(got - want).max() < 4e-6 * np.abs(want).max()


# --- which queries are taken together -------------------------------------------------------------

Seen = list[tuple[int, int, int]]  # of each query: its list, the first entry, how many


class Runs(NamedTuple):
    """What the kernel of a node decides, and does."""

    n_queries: list[list[int]]  # for each head of K: how many are taken together, one after another
    last: range  # the queries that are taken together last: none, where all are taken alone
    rows: NDArray[np.int64]  # their part [n_rows, 2] of the table of rows


def runs_of(y: Tensor, isa: str, n_threads: int) -> Runs:
    """Runs `y`, and asks the functions by which its kernel decides."""
    places = {y: Place(HostBuffer(aligned_bytes(y.spec.n_bytes)), 0)}
    for source in y.src:
        assert source.root.place is not None
        places[source] = Place(source.root.place.buffer, source.view_offs)
    cpu = CpuBackend(n_threads, isa)
    plan = cpu.plan([Step.of(y)], places)
    assert isinstance(plan, CpuPlan)
    scratch = cpu._pool.take("scratch", 0)
    scratch.data[:] = 0xFF
    plan.submit()
    plan.check()
    q, k = y.src[:2]
    out = np.zeros(1 + 3 * k.ne[2] * q.ne[1], np.int64)
    address = jit_for(isa).load([attention_runs])[attention_runs]
    call = ctypes.CFUNCTYPE(None, *3 * [ctypes.c_int64])(address)
    call(plan._plan.record(0).ctypes.data, n_threads, out.ctypes.data)
    found = [run for run in out[1:].reshape(-1, 3).tolist() if run[2] > 0]
    of_heads = [sorted(run for run in found if run[0] == head) for head in range(k.ne[2])]
    several = [range(query, query + n) for _, query, n in found if n > 1]
    last = several[-1] if several else range(0)
    start = int(out[0]) - scratch.address
    table = scratch.data[start : start + 16 * len(last) * (q.ne[2] // k.ne[2])]
    return Runs(
        [[n for _, _, n in runs] for runs in of_heads], last, table.view(np.int64).reshape(-1, 2)
    )


def scene_of(heads: tuple[int, int], n_queries: int, seen: Seen | None) -> Tensor:
    """A node over three lists of 128 cells, or over a cache of as many in order."""
    n_kv, (n_head, n_head_kv) = 128, heads
    q = np.ones((1, n_queries, n_head, 16), np.float32)
    k = np.ones((1, n_kv, n_head_kv, 16), np.float32)
    lists = None if seen is None else (np.tile(np.arange(n_kv), (3, 1)), np.array([seen]))
    return attend(q, k, k, None, "f16", lists)


def prompt(n_queries: int) -> Seen:
    return [(0, 0, 30 + i) for i in range(n_queries)]


# Heads of q and of K, what each query sees, how many are taken together.
SCENES: dict[str, tuple[tuple[int, int], Seen, list[int]]] = {
    "a prompt": ((8, 2), prompt(37), [32, 5]),
    "one query is left": ((8, 2), prompt(33), [32, 1]),
    "five heads share": ((5, 1), prompt(30), [25, 5]),
    "just enough rows": ((1, 1), prompt(8), [8]),
    "too few rows": ((1, 1), prompt(7), 7 * [1]),
    "a window, by 16 cells at most": ((8, 2), [(0, i, 40) for i in range(37)], [17, 15, 5]),
    "a window that jumps": ((4, 1), [(0, 12 * (i // 3), 15) for i in range(9)], [6, 3]),
    "cells that nobody sees between": ((8, 2), [(0, 3 * i, 2) for i in range(20)], 20 * [1]),
    "side by side": ((8, 2), [(0, 2 * i, 2) for i in range(18)], [9, 9]),
    "earlier cells than the first query": ((8, 2), [(0, 9 - i, 20) for i in range(9)], 9 * [1]),
    "two lists": ((8, 2), [(i // 20, 0, 30 + i) for i in range(37)], [20, 12, 5]),
    "a list for each": ((8, 2), [(i % 3, 0, 30) for i in range(24)], 24 * [1]),
}


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("name", SCENES)
def test_neighbours_that_see_a_stretch_are_taken_together(isa: str, name: str) -> None:
    """As the functions that decide say, and as the table of rows shows, which only several queries
    together write."""
    heads, seen, wanted = SCENES[name]
    found = runs_of(scene_of(heads, len(seen), seen), isa, 1)
    assert found.n_queries == heads[1] * [wanted]
    first = seen[found.last.start][1]
    of_query = [[seen[i][1] - first, seen[i][2]] for i in found.last]
    n_shared = heads[0] // heads[1]
    assert found.rows.tolist() == [row for row in of_query for _ in range(n_shared)]


def test_all_cells_without_lists_are_a_stretch() -> None:
    found = runs_of(scene_of((8, 2), 40, None), BEST, 1)
    assert found.n_queries == [[32, 8], [32, 8]]
    assert found.rows.tolist() == 4 * len(found.last) * [[0, 128]]


@pytest.mark.parametrize(
    ("n_queries", "n_threads", "wanted"),
    [
        (64, 1, [32, 32]),
        (64, 2, 4 * [16]),
        (64, 3, 8 * [8]),
        (64, 16, 32 * [2]),
        (16, 16, 16 * [1]),
    ],
)
def test_tasks_are_enough_for_all_threads(
    n_queries: int, n_threads: int, wanted: list[int]
) -> None:
    y = scene_of((8, 2), n_queries, prompt(n_queries))
    assert runs_of(y, BEST, n_threads).n_queries == [wanted, wanted]


# --- their bits -----------------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> dict[str, Any]:
    """Which entries of its list each of some neighbouring queries sees: first, number."""
    n_q = draw(st.sampled_from([2, 3, 16, 17, 70]))
    n_max = draw(st.integers(1, 100) | st.sampled_from([255, 256, 257, 320, 530]))
    kind = draw(st.sampled_from(["causal", "window", "all", "any"]))
    ends = np.minimum(n_max, np.arange(n_q) + draw(st.integers(0, n_max)))
    firsts = np.zeros(n_q, np.int64)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "window":
        firsts = np.maximum(0, ends - draw(st.integers(1, 150)))
    elif kind == "all":
        ends[:] = n_max
    elif kind == "any":
        firsts = rng.integers(0, n_max + 1, n_q)
        firsts = np.sort(firsts) if draw(st.booleans()) else firsts
        ends = rng.integers(firsts, n_max + 1)
    type = draw(st.sampled_from(["f32", "f16", "bf16", "q8_0", "f16/q4_0"]))
    return {
        "seen": np.stack([firsts, ends - firsts], axis=-1),
        "n_max": n_max,
        "lists": np.sort(rng.integers(0, draw(st.integers(1, 3)), n_q)),
        "heads": draw(st.sampled_from([(1, 1), (4, 2), (3, 1), (8, 1), (20, 1), (12, 3)])),
        "d": draw(st.sampled_from([8, 24, 64, 80])) if type in ("f32", "f16", "bf16") else 96,
        "type": type,
        "n_threads": draw(st.integers(1, 5)),
        "sinks": draw(st.booleans()),
        "softcap": draw(st.sampled_from([0.0, 3.0])),
        "rng": rng,
    }


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(scene=scenes())
def test_queries_together_have_the_bits_of_each_alone(isa: str, scene: dict[str, Any]) -> None:
    """Prompts, windows and mixtures, over three lists of one cache; cells that none sees hold NaN,
    and entries that none sees do not exist."""
    rng, types = scene["rng"], scene["type"]
    (n_head, n_head_kv), d, n_max = scene["heads"], scene["d"], scene["n_max"]
    seen = np.concatenate([scene["lists"][:, None], scene["seen"]], axis=-1)
    params: dict[str, Any] = {"softcap": scene["softcap"]}
    if scene["sinks"]:
        params["sinks"] = rng.standard_normal(n_head).astype(np.float32)
    n_kv = 3 * n_max + 1
    used = np.zeros((3, n_max), bool)
    for i, first, n in seen:
        used[i, first : first + n] = True
    cells = np.where(used, rng.permutation(n_kv)[: 3 * n_max].reshape(3, n_max), -1)
    k, v = np.full((2, n_kv, n_head_kv, d), np.nan if "q" not in types else 1e3, np.float32)
    k[cells[used]] = rng.standard_normal((used.sum(), n_head_kv, d)) * 2
    v[cells[used]] = rng.standard_normal((used.sum(), n_head_kv, d))
    q = rng.standard_normal((len(seen), n_head, d)).astype(np.float32)
    y = attend(q[None], k[None], v[None], None, types, (cells, seen[None]), **params)
    together = run(y, isa, scene["n_threads"]).reshape(len(seen), n_head, d)
    for i in {0, len(seen) // 2, len(seen) - 1, *rng.integers(0, len(seen), 3).tolist()}:
        lists = cells, seen[None, i : i + 1]
        one = attend(q[None, i : i + 1], k[None], v[None], None, types, lists, **params)
        assert run(one, isa, 1).tobytes() == together[i].tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("n_q", [2, 64, 133])
def test_without_lists_and_masks(isa: str, n_q: int) -> None:
    """Queries of two streams, which see all the cells of theirs."""
    rng = np.random.default_rng(n_q)
    q = rng.standard_normal((2, n_q, 8, 64)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 290, 2, 64)).astype(np.float32)
    together = run(attend(q, k, v, None, "f16"), isa, 3).reshape(2, n_q, 8, 64)
    for s, i in ((0, 0), (0, n_q - 1), (1, 0), (1, n_q // 2)):
        stream = slice(s, s + 1)
        one = attend(q[stream, i : i + 1], k[stream], v[stream], None, "f16")
        assert run(one, isa, 1).tobytes() == together[s, i].tobytes()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_cell_that_does_not_exist_is_reported(n_threads: int) -> None:
    q, k = np.ones((1, 20, 8, 16), np.float32), np.ones((1, 90, 2, 16), np.float32)
    cells = np.arange(90)[None]
    cells[0, 85] = 90
    seen = np.array([[[0, 0, 71 + i] for i in range(20)]])
    run(attend(q[:, :15], k, k, None, "f16", (cells, seen[:, :15])), BEST, n_threads)
    with pytest.raises(IndexOutOfRange, match="index 90 is out of range"):
        run(attend(q, k, k, None, "f16", (cells, seen)), BEST, n_threads)
