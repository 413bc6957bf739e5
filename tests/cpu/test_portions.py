"""Portions of work that threads take: all of it once, and counters for the next run."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.kernel import Int, entry
from ggmlpy.backends.cpu.kernels.portions import (
    N_COUNTERS,
    cut,
    end_portions,
    first_portion,
    next_portion,
    units_of,
)
from ggmlpy.backends.cpu.simd.core import i64
from ggmlpy.backends.cpu.simd.memory import store_i64
from tests.cpu.conftest import ISAS, VECTOR_ISAS, jit_for
from tests.cpu.products import each_product, random_x, run, same_bits, weight_bytes

MOST_PORTIONS = 400


@entry(*[i64] * 7)
def write_portions(n_units: Int, step: Int, counters: Int, ith: Int, nth: Int, out: Int) -> Int:
    """Start and end of each portion of share `ith`, to `out`; returns their number."""
    portions = cut(n_units, step, counters, ith, nth)
    i, n = first_portion(portions), 0
    while i < portions.n:
        start, end = units_of(portions, i)
        store_i64(out + 16 * n, start)
        store_i64(out + 16 * n + 8, end)
        n += 1
        i = next_portion(portions)
    end_portions(counters, nth)
    return n


@cache
def _compiled() -> Any:
    address = jit_for(ISAS[0]).address(write_portions)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(address)


def portions_of(
    n_units: int, step: int, nth: int, *, taken: bool = True, n_threads: int = 2
) -> list[tuple[int, int]]:
    """All portions in order, as threads that take them or have one each have done them."""
    counters = np.zeros(N_COUNTERS, np.int64)
    out = np.zeros((nth, MOST_PORTIONS, 2), np.int64)

    def work(ith: int) -> int:
        at = counters.ctypes.data if taken else 0
        return int(_compiled()(n_units, step, at, ith, nth, out[ith].ctypes.data))

    with ThreadPoolExecutor(n_threads) as pool:
        counts = list(pool.map(work, range(nth)))
    assert not counters.any(), "the next run begins with other counters"
    return sorted((s, e) for i, n in enumerate(counts) for s, e in out[i, :n].tolist())


@given(
    n_units=st.integers(0, 5000),
    step=st.sampled_from([1, 2, 4]),
    nth=st.integers(1, 64),
    taken=st.booleans(),
    n_threads=st.integers(1, 4),
)
def test_all_units_are_done_once(
    n_units: int, step: int, nth: int, taken: bool, n_threads: int
) -> None:
    """Also by fewer threads than there are shares."""
    portions = portions_of(n_units, step, nth, taken=taken, n_threads=n_threads)
    ends = [0, *(end for _, end in portions)]
    assert [start for start, _ in portions] == ends[:-1]
    assert ends[-1] == n_units
    assert all(start <= end for start, end in portions)


def test_the_last_portions_are_short() -> None:
    """Whole steps, each no longer than the one before, the last ones 1 % of all."""
    for step in (1, 2, 4):
        lengths = [end - start for start, end in portions_of(1000 * step, step, 2)]
        assert not [n for n in lengths if n % step]
        assert all(a >= b - step for a, b in pairwise(lengths))
        assert lengths[0] < 500 * step
        assert lengths[-1] <= 10 * step


@pytest.mark.parametrize("nth", [2, 7, 64])
def test_few_portions_are_empty(nth: int) -> None:
    """What is too little for that many threads has a portion for each."""
    for n_units in (16 * nth - 1, 16 * nth, 100 * nth):
        portions = portions_of(n_units, 1, nth)
        assert sum(start == end for start, end in portions) <= nth
        assert (len(portions) == nth) == (n_units < 16 * nth)


@each_product(["q4_0", "q6_K", "f32"], VECTOR_ISAS)
def test_products_in_portions(isa: str, type: str) -> None:
    """Of matrices that are cut finely, several times and across chunks of x: the bits of one
    thread."""
    k, m = 256, 1047  # an odd number of groups, the last one in part
    weight, other = (
        ggmlpy.from_bytes(weight_bytes(type, m, k, seed=seed), type, (k, m)) for seed in (1, 2)
    )
    for n in (40, 1100):
        x = ggmlpy.from_numpy(random_x(n, k))
        for node in (
            ops.mul_mat(weight, x),
            ops.swiglu_split(ops.mul_mat(weight, x), ops.mul_mat(other, x)),
        ):
            alone = run(node, isa, n_threads=1)
            for n_threads in (2, 3, 2):  # all nodes of a backend share their counters
                same_bits(run(node, isa, n_threads=n_threads), alone)
