"""A gated linear unit with the two products that it reads: act(gate x) * (up x).

    MATMUL_GLU[weight type]   y = gated(gate x, up x)    both weights of one type and shape

One kernel serves all ops of gated units, told apart by a field of its record: their own code is
small beside that of the products.

Its work is that of matmul.py: groups of 16 rows of each weight times chunks of rows of x; each
number is rounded as by three separate kernels. Only a few tiles of each product exist at a time, in
the thread's scratch memory:

    weights                        with      groups   rows of x
    codes                          AMX       4        256
    codes, by two groups           AVX512    2        48
    codes                          any       1        8
    floats                         any       1        48, with bf16 and AMX 256

Where a tile has all rows of x, weights may come from memory, and a thread reads them in long
streams: many groups of the gate's, then as many of the other's. Alternating between single groups
took 8 % longer (q4_0 and f16 [2048, 8192], one row of x, one core of a Sapphire Rapids Xeon).

    a thread's scratch   lists (matmul_lists.py) | tiles of gate x | tiles of up x | addresses |
                         memory of a unit (matmul_units.py)

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.formats.base import GROUP, Format, PackedFormat
from ggmlpy.backends.cpu.formats.block_tiles import GROUPS, PANELS
from ggmlpy.backends.cpu.formats.many_rows import MOST_ROWS
from ggmlpy.backends.cpu.formats.pairs import PAIR_ROWS
from ggmlpy.backends.cpu.formats.unpacked_pairs import TILE_ROWS
from ggmlpy.backends.cpu.kernel import (
    Choice,
    Inline,
    Int,
    Kernel,
    Record,
    constant,
    inline,
    kernel,
)
from ggmlpy.backends.cpu.kernels import matmul, matmul_lists, matmul_work
from ggmlpy.backends.cpu.kernels.glu import GATED
from ggmlpy.backends.cpu.kernels.matmul import FORMATS, lists_stride
from ggmlpy.backends.cpu.kernels.matmul_groups import SUM_BYTES, Groups, Sums
from ggmlpy.backends.cpu.kernels.matmul_units import store_sums_of, unit_of, work_bytes
from ggmlpy.backends.cpu.kernels.matmul_work import do_units
from ggmlpy.backends.cpu.kernels.types import FLOATS
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.amx import TILES_BY
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_i64,
    store_i64,
)
from ggmlpy.graph.tensor import Tensor

GLUS = tuple(GATED)  # the field `glu` of a record is an index of it
PARAMS = {name for params, _ in GATED.values() for name in params}
FIELDS = [
    *matmul_lists.FIELDS,
    *matmul_work.FIELDS,
    *((name, "i8") for name in ("weight_up", "tiles", "glu")),
    *((name, "f4") for name in sorted(PARAMS)),
]
# Of x at a time: those of a tile, whole tiles of two groups, and with AMX all that a unit has.
ROWS, ROWS_BY_TWO, ROWS_BY_TILES = 8, 8 * PAIR_ROWS, PANELS * amx.ROWS
assert ROWS_BY_TWO % TILE_ROWS == 0
RUN = 256  # sums of a group each, all of them less than half an L1 cache
_UP = max(RUN, GROUPS * ROWS_BY_TILES) * SUM_BYTES  # where the tiles of up x are
_ADDRESSES = _UP + GROUPS * ROWS_BY_TILES * SUM_BYTES  # of the first tile's rows
_TILES_BYTES = _ADDRESSES + 8 * ROWS_BY_TILES


def _rows_at_once(format: Format) -> Inline:
    in_registers = constant(MOST_ROWS)
    if isinstance(format, PackedFormat):
        in_registers = constant(ROWS)
        if format.two_groups is not None:
            by_two = constant(ROWS_BY_TWO)
            in_registers = Choice(frozenset({"avx512"}), by_two, in_registers)
    if format.tiles is None:
        return in_registers
    return Choice(TILES_BY, constant(ROWS_BY_TILES), in_registers)


def _stride(format: Format, gate: Tensor, has_tiles: bool = True) -> int:
    """Bytes of scratch memory for a thread, at most."""
    work = work_bytes(format, gate.src[1].ne[0], gate.spec.n_rows, has_tiles)
    return lists_stride(gate) + _TILES_BYTES + work


def _requires(node: Tensor) -> bool:
    return all(matmul.requires(product) for product in node.src)


def _bind(format: Format, node: Tensor, builder: PlanBuilder) -> dict[str, Any]:
    """`node` is the gated unit, whose sources are the two products."""
    gate, up = node.src
    fields = matmul.bind(format, gate, builder)
    assert node.op is not None
    return {
        **fields,
        "tiles": lists_stride(gate),
        "work": lists_stride(gate) + _TILES_BYTES,
        "weight_up": format.address(up.src[0], builder),
        "scratch_stride": _stride(format, gate, bool(builder.isa.has & TILES_BY)),
        "glu": GLUS.index(node.op.name),
        **dict.fromkeys(PARAMS - node.op.params().keys(), 0.0),  # those that the op does not have
    }


def _first_of(i_glu: int) -> Inline:
    """gated(p, gate, up) of the op that the record names, one of GLUS[i_glu:]."""
    gated = GATED[GLUS[i_glu]][1]
    if i_glu == len(GLUS) - 1:
        return gated
    other = _first_of(i_glu + 1)

    @inline
    def named(p: Record, gate: Any, up: Any) -> Any:
        if p.glu == i_glu:
            return gated(p, gate, up)
        return other(p, gate, up)

    return named


_gated = _first_of(0)


def _declare(format: Format) -> Kernel:
    unit = unit_of(format)
    multiply_unit, most_groups = unit.multiply, unit.most_groups
    rows_at_once = _rows_at_once(format)

    @inline
    def combine(p: Record, gate: Int, up: Int, ys: Int, n: Int, at: Int, n_lanes: Int) -> None:
        """The gated unit of two tiles, to the result."""
        for i in range(n):
            v = _gated(p, load_f32x16(gate + SUM_BYTES * i), load_f32x16(up + SUM_BYTES * i))
            store_sums_of(n, load_i64(ys + 8 * i) + at, v, n_lanes)

    @inline
    def products(
        p: Record, w: Int, group: Int, n_groups: Int, xs: Int, ys: Int, n: Int, scratch: Int
    ) -> None:
        """`n_groups` groups from `group` on of the matrices at `w` times `n` rows of x."""
        tiles, tile_bytes = scratch + p.tiles, n * SUM_BYTES
        for is_up in range(2):
            for i in range(0, n_groups, most_groups()):
                first, n_here = group + i, min(most_groups(), n_groups - i)
                w_group = w + is_up * (p.weight_up - p.weight) + first * p.group_bytes
                groups = Groups(w_group, p.group_bytes, n_here, p.y.ne0 - GROUP * first)
                to = _UP if is_up == 1 else i * tile_bytes
                sums = Sums(tiles + _ADDRESSES, to, tile_bytes, 0, False)
                multiply_unit(groups, p.x.ne0, xs, n, sums, scratch + p.work)
                for j in range(n_here if is_up == 1 else 0):
                    gate, up = tiles + (i + j) * tile_bytes, tiles + _UP + j * tile_bytes
                    at, n_lanes = SUM_BYTES * (first + j), groups.n_rows - GROUP * j
                    combine(p, gate, up, ys, n, at, n_lanes)

    @inline
    def groups_at_once(n: Int, chunk: Int) -> Int:
        step = most_groups()
        return max(step, quotient(RUN, n) & -step) if n <= min(rows_at_once(), chunk) else step

    @inline
    def multiply_groups(
        p: Record, w: Int, group: Int, n_groups: Int, xs: Int, ys: Int, n: Int, scratch: Int
    ) -> None:
        for row in range(0, n, rows_at_once()):
            n_here = min(rows_at_once(), n - row)
            products(p, w, group, n_groups, xs + 8 * row, ys + 8 * row, n_here, scratch)

    do_share = do_units(unit, groups_at_once, multiply_groups)

    def matmul_glu(p: Record, ith: Int, nth: Int) -> None:
        scratch = p.scratch + ith * p.scratch_stride
        for i in range(rows_at_once()):
            store_i64(scratch + p.tiles + _ADDRESSES + 8 * i, scratch + p.tiles + SUM_BYTES * i)
        do_share(p, scratch, ith, nth)

    weights = format.type_name, format.type_name
    served = [
        *((f"mul_mat+mul_mat+{op}", (*weights, x)) for op in GLUS for x in FLOATS),
        *((f"mul_mat_id+mul_mat_id+{op}", (*weights, x, "i32")) for op in GLUS for x in FLOATS),
    ]
    return kernel(
        *served[0],
        args=np.dtype(FIELDS, align=True),
        requires=_requires,
        scratch_bytes=lambda node, n_threads: n_threads * _stride(format, node.src[0]),
        bind=lambda node, builder: _bind(format, node, builder),
        name=f"matmul_glu_{format.type_name}",
        also=served[1:],
    )(matmul_glu)


MATMUL_GLU = {format.type_name: _declare(format) for format in FORMATS}
