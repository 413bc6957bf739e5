"""Dot products of a few weight rows with a few rows of x, both read along their elements.

    sums   tile of n vectors f32x16: vector t belongs to row t of x, lane i to weight row i
    dots   tile of R * n vectors f32: vector t * R + r for row t of x and weight row r. It has all
           16 lanes, element i of the rows in lane i % 16, or V consecutive ones
    ws     tile of R addresses: where weight rows start
    rows   tile of n addresses: where rows of x start, f32
    kept   dots in memory: for each row of x, KEPT_BYTES apart, the 16 lanes of 16 weight rows

R and V are such that `dots` stays in registers. No result depends on them.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.arith import fma
from ggmlpy.backends.cpu.simd.convert import from_bf16_bits, from_f16_bits
from ggmlpy.backends.cpu.simd.core import (
    Const,
    Emitter,
    Intrinsic,
    Scalar,
    Tile,
    Type,
    Vec,
    f32,
    f32x16,
    i16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.memory import load_part, prefetch_l2
from ggmlpy.backends.cpu.simd.product import after, parts, tile_of
from ggmlpy.backends.cpu.simd.reduce import fold4, fold16

Arg = Type | Const
_MOST_ROWS = 4  # that are read side by side


@dataclass(frozen=True, slots=True)
class Weights:
    """How numbers of one type are read as f32: `widen` is that of the bits in a vector."""

    stored: Scalar
    n_bytes: int
    widen: Callable[[Emitter, Any], Any]

    def load(self, b: Emitter, row: Any, i: Any, n_lanes: int) -> Any:
        """Elements i, i + 1, ... of the row at an address."""
        return self.widen(b, b.load_from(self._at(b, row, i), Vec(self.stored, n_lanes)))

    def load_part(self, b: Emitter, row: Any, i: Any, n: Any, n_lanes: int) -> Any:
        """The first `n` of them, then zeros."""
        bits = load_part(b, self._at(b, row, i), n, Vec(self.stored, n_lanes))
        return self.widen(b, bits)

    def _at(self, b: Emitter, row: Any, i: Any) -> Any:
        return b.add(row, b.mul(i, ir.Constant(i64.ir, self.n_bytes)))


F32 = Weights(f32, 4, lambda b, numbers: numbers)
F16 = Weights(i16, 2, from_f16_bits)
BF16 = Weights(i16, 2, from_bf16_bits)


def _infer_dots(*args: Arg) -> Any:
    if len(args) != 2 or not isinstance(args[0], Tile) or not isinstance(args[1], Const):
        return None
    n = args[0].n
    # For one row of x memory is the limit, and one stream of rows is read fastest.
    n_rows = 1 if n == 1 else max(1, min(_MOST_ROWS, args[1].value // n))
    return (Tile(f32x16, n_rows * n), args[0], args[1])


@typed(_infer_dots)
def zero_dots(b: Emitter, sums: Any, n_sums: Const) -> Any:
    """Zeros for as many weight rows as are read side by side: at most `n_sums` vectors, a
    constant."""
    dots = _infer_dots(Tile(f32x16, sums.type.count), n_sums)[0]
    return ir.Constant(dots.ir, None)


def _infer_with_sums(result: Callable[[int], Type], *params: Type) -> Any:
    """dots, sums, then `params`; `result` of the number of weight rows."""

    def infer(*args: Arg) -> Any:
        if len(args) != 2 + len(params) or not all(isinstance(a, Tile) for a in args[:2]):
            return None
        dots, sums = args[0], args[1]
        assert isinstance(dots, Tile) and isinstance(sums, Tile)
        return (result(dots.n // sums.n), dots, sums, *params)

    return infer


@typed(_infer_with_sums(lambda n_rows: i64))
def n_rows_of(b: Emitter, dots: Any, sums: Any) -> Any:
    """How many weight rows `dots` has, for as many rows of x as `sums` has."""
    return ir.Constant(i64.ir, dots.type.count // sums.type.count)


@typed(_infer_with_sums(lambda n_rows: Tile(i64, n_rows), i64, i64, i64, i64))
def weight_rows(
    b: Emitter, dots: Any, sums: Any, w: Any, first: Any, n_rows: Any, row_bytes: Any
) -> Any:
    """The addresses of rows `first`, first + 1, ... of the `n_rows` at w: the last one, where that
    is past them."""
    last = b.sub(n_rows, ir.Constant(i64.ir, 1))
    found = []
    for r in range(dots.type.count // sums.type.count):
        row = after(b, first, r)
        row = b.select(b.icmp_signed("<", row, last), row, last)
        found.append(b.add(w, b.mul(row, row_bytes)))
    return tile_of(b, found)


def _infer_add(*params: Type) -> Any:
    """dots, ws, rows, then `params`."""

    def infer(*args: Arg) -> Any:
        tiles = args[:3]
        if len(args) != 3 + len(params) or not all(isinstance(a, Tile) for a in tiles):
            return None
        dots, ws, rows = tiles
        assert isinstance(dots, Tile) and isinstance(ws, Tile) and isinstance(rows, Tile)
        if ws.elem != i64 or rows.elem != i64 or dots.n != ws.n * rows.n:
            return None
        return (dots, dots, ws, rows, *params)

    return infer


def add_dots(weights: Weights) -> tuple[Intrinsic, Intrinsic]:
    """The functions

    add(dots, ws, rows, i)          a product more in each lane, from element i on
    add_part(dots, ws, rows, i, n)  of the first `n` lanes, of which there may be none: no byte
                                    past them is touched, the other lanes add 0
    """

    def added(b: Emitter, dots: Any, ws: list[Any], xs: list[Any]) -> Any:
        pairs = [(x, w) for x in xs for w in ws]
        return tile_of(b, [fma(b, *p, d) for p, d in zip(pairs, parts(b, dots), strict=True)])

    @typed(_infer_add(i64))
    def add(b: Emitter, dots: Any, ws: Any, rows: Any, i: Any) -> Any:
        n_lanes = dots.type.element.count
        of_w = [weights.load(b, w, i, n_lanes) for w in parts(b, ws)]
        of_x = [F32.load(b, row, i, n_lanes) for row in parts(b, rows)]
        return added(b, dots, of_w, of_x)

    @typed(_infer_add(i64, i64))
    def add_part(b: Emitter, dots: Any, ws: Any, rows: Any, i: Any, n: Any) -> Any:
        n_lanes = dots.type.element.count
        of_w = [weights.load_part(b, w, i, n, n_lanes) for w in parts(b, ws)]
        of_x = [F32.load_part(b, row, i, n, n_lanes) for row in parts(b, rows)]
        return added(b, dots, of_w, of_x)

    return add, add_part


def _infer_put(*args: Arg) -> Any:
    if len(args) != 3 or not all(isinstance(a, Tile) for a in args[:2]):
        return None
    return (args[0], args[0], args[1], i64)


@typed(_infer_put)
def put_sums(b: Emitter, sums: Any, dots: Any, first: Any) -> Any:
    """Lanes first, first + 1, ... of sums[t]: the dot products of row t of x, by the tree of
    `sum_lanes`. `first` is a multiple of the number of weight rows; the other lanes stay."""
    vectors = parts(b, dots)
    n_rows = len(vectors) // sums.type.count
    lanes = ir.Constant(ir.VectorType(i64.ir, 16), [i // n_rows * n_rows for i in range(16)])
    mine = b.icmp_signed("==", lanes, b.splat(first, 16))
    totals = []
    for t, before in enumerate(parts(b, sums)):
        four = [vectors[t * n_rows + r % n_rows] for r in range(4)]
        folded = fold4(b, *four)
        total = fold16(b, *[folded] * 4)  # lane i: of weight row i % n_rows
        totals.append(b.select(mine, total, before))
    return tile_of(b, totals)


def _infer_prefetch(*args: Arg) -> Any:
    if len(args) != 5 or not isinstance(args[0], Tile):
        return None
    if not isinstance(args[3], Const) or not isinstance(args[4], Const):
        return None
    return (void, args[0], i64, i64, args[3], args[4])


@typed(_infer_prefetch)
def prefetch_rows(
    b: Emitter, ws: Any, at: Any, row_bytes: Any, n_bytes: Const, ahead: Const
) -> None:
    """Prefetches as many bytes as all weight rows have from byte `at` on in `n_bytes`, a constant:
    the following ones, contiguous, at the end of these rows or `ahead` bytes away."""
    addresses = parts(b, ws)
    n_rows = ir.Constant(i64.ir, len(addresses))
    far = b.mul(row_bytes, n_rows)
    least = ir.Constant(i64.ir, ahead.value)
    far = b.select(b.icmp_signed("<", far, least), least, far)
    first = b.add(b.add(addresses[0], b.mul(at, n_rows)), far)
    for line in range(0, n_bytes.value * len(addresses), 64):
        prefetch_l2(b, after(b, first, line))


def _infer_prefetch_ahead(*args: Arg) -> Any:
    if len(args) != 3 or not isinstance(args[0], Tile) or not isinstance(args[2], Const):
        return None
    return (void, args[0], i64, args[2])


@typed(_infer_prefetch_ahead)
def prefetch_each(b: Emitter, ws: Any, at: Any, n_bytes: Const) -> None:
    """Prefetches `n_bytes`, a constant, of each weight row from its byte `at` on."""
    for w in parts(b, ws):
        for line in range(0, n_bytes.value, 64):
            prefetch_l2(b, after(b, b.add(w, at), line))


# --- partial sums in memory ----------------------------------------------------------------------

_LANES_BYTES = 4 * 16
KEPT_BYTES = 16 * _LANES_BYTES  # of a row of x


def _infer_some_lanes(*args: Arg) -> Any:
    if len(args) != 3:
        return None
    rows, n_weights, n_lanes = args
    if not isinstance(rows, Tile):
        return None
    if not isinstance(n_weights, Const) or not isinstance(n_lanes, Const):
        return None
    return (Tile(Vec(f32, n_lanes.value), n_weights.value * rows.n), *args)


@typed(_infer_some_lanes)
def zero_lanes(b: Emitter, rows: Any, n_weights: Const, n_lanes: Const) -> Any:
    """Zeros for `n_weights` weight rows and `n_lanes` lanes, both constants."""
    vector = Vec(f32, n_lanes.value)
    return ir.Constant(Tile(vector, n_weights.value * rows.type.count).ir, None)


def _infer_kept(has_result: bool) -> Callable[..., Any]:
    """dots, rows, address; the result, if any, is like dots."""

    def infer(*args: Arg) -> Any:
        if len(args) != 3 or not isinstance(args[0], Tile) or not isinstance(args[1], Tile):
            return None
        return (args[0] if has_result else void, args[0], args[1], i64)

    return infer


def _places(b: Emitter, dots: Any, rows: Any, kept: Any) -> list[Any]:
    """The address of each vector of `dots`."""
    n_rows = rows.type.count
    pairs = [(t, r) for t in range(n_rows) for r in range(dots.type.count // n_rows)]
    return [after(b, kept, KEPT_BYTES * t + _LANES_BYTES * r) for t, r in pairs]


@typed(_infer_kept(True))
def load_dots(b: Emitter, dots: Any, rows: Any, kept: Any) -> Any:
    """What `store_dots` left at `kept`, in the shape of `dots`."""
    vector = Vec(f32, dots.type.element.count)
    return tile_of(b, [b.load_from(place, vector) for place in _places(b, dots, rows, kept)])


@typed(_infer_kept(False))
def store_dots(b: Emitter, dots: Any, rows: Any, kept: Any) -> None:
    """Dots to `kept`, the place of their first weight row and lane."""
    for place, vector in zip(_places(b, dots, rows, kept), parts(b, dots), strict=True):
        b.store_to(place, vector)


@intrinsic(f32x16, i64)
def sum_kept(b: Emitter, kept: Any) -> Any:
    """The dot products of a row of x with 16 weight rows, by the tree of `sum_lanes`."""
    lanes = [b.load_from(after(b, kept, _LANES_BYTES * r), f32x16) for r in range(16)]
    return fold16(b, *[fold4(b, *lanes[r : r + 4]) for r in range(0, 16, 4)])
