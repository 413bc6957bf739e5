"""Pieces of work that threads take in turns: all of it once, and counters for the next run."""

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
from ggmlpy.backends.cpu.kernels.turns import (
    N_COUNTERS,
    cut,
    end_turns,
    first_piece,
    next_piece,
    units_of,
)
from ggmlpy.backends.cpu.simd.core import i64
from ggmlpy.backends.cpu.simd.memory import store_i64
from tests.cpu.conftest import ISAS, jit_for
from tests.cpu.products import random_x, run, same_bits, weight_bytes

MOST_PIECES = 64


@entry(*[i64] * 7)
def write_pieces(n_units: Int, step: Int, counters: Int, ith: Int, nth: Int, out: Int) -> Int:
    """Start and end of each piece that this thread does, to `out`; returns their number."""
    pieces = cut(n_units, step, counters, ith, nth)
    piece, n = first_piece(pieces), 0
    while piece < pieces.n:
        start, end = units_of(pieces, piece)
        store_i64(out + 16 * n, start)
        store_i64(out + 16 * n + 8, end)
        n += 1
        piece = next_piece(pieces)
    end_turns(counters, nth)
    return n


@cache
def _compiled() -> Any:
    address = jit_for(ISAS[0]).address(write_pieces)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(address)


def pieces_of(n_units: int, step: int, nth: int, *, in_turns: bool) -> list[tuple[int, int]]:
    """All pieces in order, as threads that run side by side have done them."""
    counters = np.zeros(N_COUNTERS, np.int64)
    out = np.zeros((nth, MOST_PIECES, 2), np.int64)

    def work(ith: int) -> int:
        at = counters.ctypes.data if in_turns else 0
        return int(_compiled()(n_units, step, at, ith, nth, out[ith].ctypes.data))

    with ThreadPoolExecutor(nth) as pool:
        counts = list(pool.map(work, range(nth)))
    assert not counters.any(), "the next run begins with other counters"
    return sorted((s, e) for i, n in enumerate(counts) for s, e in out[i, :n].tolist())


@given(
    n_units=st.integers(0, 5000),
    step=st.sampled_from([1, 2, 4]),
    nth=st.integers(1, 5),
    in_turns=st.booleans(),
)
def test_all_units_are_done_once(n_units: int, step: int, nth: int, in_turns: bool) -> None:
    pieces = pieces_of(n_units, step, nth, in_turns=in_turns)
    ends = [0, *(end for _, end in pieces)]
    assert [start for start, _ in pieces] == ends[:-1]
    assert ends[-1] == n_units
    assert all(start <= end for start, end in pieces)


def test_the_last_pieces_are_short() -> None:
    """Whole steps, each piece no longer than the one before, the last ones 1 % of all."""
    for step in (1, 2, 4):
        lengths = [end - start for start, end in pieces_of(1000 * step, step, 2, in_turns=True)]
        assert not [n for n in lengths if n % step]
        assert all(a >= b - step for a, b in pairwise(lengths))
        assert lengths[0] < 500 * step
        assert lengths[-1] <= 10 * step


@pytest.mark.parametrize("type", ["q4_0", "q6_K", "f32"])
def test_products_in_turns(type: str) -> None:
    """Of a matrix that is cut finely, several times: the bits of one thread."""
    k, m, n = 256, 1287, 40  # an odd number of groups, the last one in part
    weight = ggmlpy.from_bytes(weight_bytes(type, m, k), type, (k, m))
    other = ggmlpy.from_bytes(weight_bytes(type, m, k, seed=2), type, (k, m))
    x = ggmlpy.from_numpy(random_x(n, k))
    for node in (
        ops.mul_mat(weight, x),
        ops.swiglu_split(ops.mul_mat(weight, x), ops.mul_mat(other, x)),
    ):
        alone = run(node, n_threads=1)
        for n_threads in (2, 3):
            for _ in range(2):  # counters are shared by all nodes and plans
                same_bits(run(node, n_threads=n_threads), alone)
