"""Guided self-scheduling: threads take portions of a node's work, so that none waits long for a
slower one.

    portions = cut(n_units, step, counters, ith, nth)
    i = first_portion(portions)
    while i < portions.n:
        start, end = units_of(portions, i)
        ...
        i = next_portion(portions)
    end_portions(counters, nth)

Portions get smaller towards the end, in proportion to what is left (Polychronopoulos and Kuck, IEEE
Transactions on Computers, 1987): the last ones, for which threads wait, are short. Cores of one
machine differ by some per cent from moment to moment, and more where others use them. A prompt of
512 took 3.4 % longer with one portion for each thread (`ggmlpy bench -p 512 -n 0`, Llama-3.2-1B
q4_0, 2 threads of an EPYC, Zen 5, medians of 6, 2026-11-27).
"""

from __future__ import annotations

from typing import NamedTuple

from ggmlpy.backends.cpu.kernel import Int, inline
from ggmlpy.backends.cpu.rows import share
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_store_i64

N_COUNTERS = 2  # of a node: portions taken, shares that are done
# For each thread. The last of 12 is 1 % of all, which is about what two threads differ by in the
# end; each begins with weights that nothing has prefetched.
_PORTIONS = 6
_LEAST_STEPS = 16  # for each thread, to be worth cutting


class Portions(NamedTuple):
    """`n_units` of work in `n` portions of whole steps of `step` units. Where `counters` is 0 each
    share has one portion, its own, of any number of units."""

    n_units: Int
    step: Int
    n: Int
    counters: Int
    ith: Int


class Units(NamedTuple):
    """Units start .. end - 1."""

    start: Int
    end: Int


@inline
def cut(n_units: Int, step: Int, counters: Int, ith: Int, nth: Int) -> Portions:
    """The portions of a node's work, for share `ith` of `nth`. At `counters`, an address or 0, are
    N_COUNTERS integers, 0 before and after."""
    if counters != 0 and n_units >= _LEAST_STEPS * step * nth:
        return Portions(n_units, step, _PORTIONS * nth, counters, ith)
    return Portions(n_units, step, nth, 0, ith)


@inline
def _start(portions: Portions, i: Int) -> Int:
    """The first unit of portion `i`, or the end of the last one."""
    if portions.counters == 0:
        return share(portions.n_units, i, portions.n)
    left = portions.n - i
    if left == 0:
        return portions.n_units
    n_left = quotient(portions.n_units * left * left, portions.n * portions.n)
    return quotient(portions.n_units - n_left, portions.step) * portions.step


@inline
def units_of(portions: Portions, i: Int) -> Units:
    """The units of portion `i`."""
    return Units(_start(portions, i), _start(portions, i + 1))


@inline
def first_portion(portions: Portions) -> Int:
    """The first one of this share."""
    return atomic_add_i64(portions.counters, 1) if portions.counters != 0 else portions.ith


@inline
def next_portion(portions: Portions) -> Int:
    """The next one of this share, portions.n or more if none is left."""
    return atomic_add_i64(portions.counters, 1) if portions.counters != 0 else portions.n


@inline
def end_portions(counters: Int, nth: Int) -> None:
    """When a share has done its last portion: the last share sets the counters to 0."""
    if counters != 0 and atomic_add_i64(counters + 8, 1) == nth - 1:
        atomic_store_i64(counters, 0)
        atomic_store_i64(counters + 8, 0)
