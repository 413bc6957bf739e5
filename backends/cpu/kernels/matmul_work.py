"""How threads share the units of matrix products (matmul_units.py): what plain products and gated
units have in common.

One matrix times many rows of x is done in portions that threads take one after another
(portions.py). Otherwise each share of a node has its part of every matrix.
"""

from __future__ import annotations

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.formats.base import GROUP
from ggmlpy.backends.cpu.kernel import Inline, Int, Record, inline
from ggmlpy.backends.cpu.kernels.matmul_lists import (
    clear_rows_without_matrix,
    list_addresses,
    make_lists,
)
from ggmlpy.backends.cpu.kernels.matmul_units import Unit, chunk_rows
from ggmlpy.backends.cpu.kernels.portions import (
    N_COUNTERS,
    Units,
    cut,
    end_portions,
    first_portion,
    next_portion,
    units_of,
)
from ggmlpy.backends.cpu.rows import n_rows
from ggmlpy.backends.cpu.simd.amx import TILES_BY
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import load_i64

FIELDS = [
    ("weight", "i8"),
    ("group_bytes", "i8"),
    ("matrix_bytes", "i8"),
    ("work", "i8"),  # offset of the unit's memory in a thread's scratch memory
    ("counters", "i8"),  # of portions, or 0
]
# Of x, for portions. Products of fewer wait for memory, which is read fastest in few long streams:
# a token took 10 to 30 % longer (`ggmlpy bench -p 0 -n 64`, Llama-3.2-1B and Qwen2.5-0.5B q4_0, 2
# threads of an EPYC, Zen 5, 2026-11-27).
_LEAST_ROWS = 16


def bind_counters(builder: PlanBuilder) -> int:
    """Not with AMX: a thread packs each chunk of x that it takes, and would take nearly all of
    them."""
    return 0 if builder.isa.has & TILES_BY else builder.counters(N_COUNTERS)


def do_units(unit: Unit, groups_at_once: Inline, multiply_groups: Inline) -> Inline:
    """The function (p, scratch, ith, nth) that does share `ith` of a node's products. It calls

    groups_at_once(n, chunk)
                    groups that `multiply_groups` takes at most, of units of `chunk` rows of n
    multiply_groups(p, w, group, n_groups, xs, ys, n, scratch)
                    groups from number `group` on of the matrix at `w`, times the n rows of x listed
                    at xs, to the rows listed at ys
    """
    begin, take, end = unit.begin, unit.take, unit.end
    most_rows, row_step, most_groups = unit.most_rows, unit.row_step, unit.most_groups

    @inline
    def multiply_units(
        p: Record, w: Int, xs: Int, ys: Int, n: Int, chunk: Int, units: Units, taken: Int, at: Int
    ) -> Int:
        """Some units of one matrix times n rows. `taken` is the chunk of x that `take` had last,
        before and after; scratch memory is `at` an address."""
        n_groups = quotient(p.y.ne0 + GROUP - 1, GROUP)
        i = units.start
        while i < units.end:
            i_chunk = quotient(i, n_groups)
            group, first = i - i_chunk * n_groups, i_chunk * chunk
            x, y, n_here = xs + 8 * first, ys + 8 * first, min(chunk, n - first)
            n_groups_here = min(groups_at_once(n, chunk), n_groups - group, units.end - i)
            if i_chunk != taken:
                take(x, n_here, p.x.ne0, at + p.work)
                taken = i_chunk
            multiply_groups(p, w, group, n_groups_here, x, y, n_here, at)
            i += n_groups_here
        return taken

    @inline
    def multiply(
        p: Record, w: Int, xs: Int, ys: Int, n: Int, at: Int, counters: Int, ith: Int, nth: Int
    ) -> None:
        """The portions of share `ith` of one matrix."""
        n_groups = quotient(p.y.ne0 + GROUP - 1, GROUP)
        chunk = chunk_rows(n, n_groups, most_rows(n, p.x.ne0, p.row_bytes), row_step(), nth)
        n_units = n_groups * quotient(n + chunk - 1, chunk)
        portions = cut(n_units, most_groups(), counters, ith, nth)
        i, taken = first_portion(portions), -1
        while i < portions.n:
            taken = multiply_units(p, w, xs, ys, n, chunk, units_of(portions, i), taken, at)
            i = next_portion(portions)

    @inline
    def do_share(p: Record, scratch: Int, ith: Int, nth: Int) -> None:
        starts, xs, ys, _ = list_addresses(p, scratch)
        make_lists(p, starts, xs, ys)
        n, n_matrices = n_rows(p.y), p.a2 * p.a3
        begin(n, scratch + p.work)
        counters = p.counters if n_matrices == 1 and n >= _LEAST_ROWS and nth > 1 else 0
        for j in range(n_matrices):
            first, last = load_i64(starts + 8 * j), load_i64(starts + 8 * j + 8)
            if first < last:
                w, x, y = p.weight + j * p.matrix_bytes, xs + 8 * first, ys + 8 * first
                multiply(p, w, x, y, last - first, scratch, counters, ith, nth)
        end_portions(counters, nth)
        end(n)
        clear_rows_without_matrix(p, starts, ys, ith, nth)

    return do_share
