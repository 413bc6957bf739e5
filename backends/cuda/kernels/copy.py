"""Copies of plain elements and of bytes as they are, concat and repeat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import COUNT, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Layout, Work, kernel
from ggmlpy.backends.cuda.kernels.copy_loops import (
    Copy,
    Loop,
    dims_of,
    in_units,
    in_units_apart,
    layouts,
    together,
    widest_unit,
)
from ggmlpy.backends.cuda.kernels.elementwise import FLOATS, THREADS, over_pieces
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import Count
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TYPES

MOVE_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("unit", "i4")], align=True)
CONVERT_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("y_type", "i4"), ("x_type", "i4")], align=True
)
CONCAT_ARGS = np.dtype(
    [
        ("to_a", TENSOR),
        ("a", TENSOR),
        ("to_b", TENSOR),
        ("b", TENSOR),
        ("n_before", COUNT),
        ("before_bytes", "i8"),
        ("unit", "i4"),
    ],
    align=True,
)
MOVE, MOVE_APART, CONCAT, REPEAT, CONVERT, CONVERT_APART, TRANSPOSE = (
    Form("copy.cu", name)
    for name in (
        "move",
        "move_apart",
        "concat",
        "repeat",
        "convert",
        "convert_apart",
        "transpose",
    )
)
_COPIES = (("cont", 1), ("dup", 1), ("cast", 1), ("cpy", 2))  # and their operands
_TILE = 32  # of a transposition
_LEAST_SIDE = 8  # of what is worth one
_RAW16 = -1  # as in copy.cu


# --- the same type --------------------------------------------------------------------------------


def _same_type(step: Step) -> bool:
    """Elements or blocks as they are. Blocks with gaps between them take too many loops."""
    x, y = step.operands["x"], step.results["y"]
    gapless = all(t.rows_contiguous or t.ne[0] == t.type.block_size for t in (x, y))
    return y.type is x.type and (gapless or not x.type.is_quantized)


def _move(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    loops = together(dims_of(y), dims_of(x))
    aligned = w.address(y) | w.address(x)
    turned = None if loops is None else _turned(loops, x.type.type_size, x.type.type_size)
    if turned is not None:
        type = _RAW16 if x.type.type_size == 2 else TYPES["f32"].id
        yield _transpose(y, x, turned, type, type)
        return
    copy = None if loops is None else in_units(y, x, loops, aligned)
    if copy is not None:
        yield _launch_move(MOVE, copy)
    else:
        yield _launch_move(MOVE_APART, in_units_apart(y, x, aligned))


def _launch_move(form: Form, copy: Copy) -> Launch:
    values = {"y": copy.y, "x": copy.x, "unit": copy.unit}
    return Launch(form, MOVE_ARGS, (blocks(copy.n_units, THREADS), 1, 1), THREADS, values=values)


def _turned(loops: list[Loop], y_size: int, x_size: int) -> list[Loop] | None:
    """Loops in the order of `transpose`, if neighbours in y are far apart in x, and others near."""
    if not 1 < len(loops) <= 4 or y_size not in (2, 4) or x_size not in (2, 4):
        return None
    along = loops[0]
    across = next((loop for loop in loops[1:] if loop.x == x_size), None)
    if along.y != y_size or across is None or min(along.n, across.n) < _LEAST_SIDE:
        return None
    return [along, across, *(loop for loop in loops[1:] if loop is not across)]


def _transpose(y: Tensor, x: Tensor, loops: list[Loop], y_type: int, x_type: int) -> Launch:
    to, of = layouts(y, x, loops)
    a, b, c, d = (int(n) for n in to.ne)
    grid = blocks(a, _TILE) * blocks(b, _TILE) * c * d, 1, 1
    values = {"y": to, "x": of, "y_type": y_type, "x_type": x_type}
    return Launch(TRANSPOSE, CONVERT_ARGS, grid, THREADS, values=values)


for _op, _n in _COPIES:
    for _type in TYPES:
        _forms = (MOVE, MOVE_APART, TRANSPOSE)
        kernel(_op, (_type,) * _n, forms=_forms, requires=_same_type)(_move)


# --- another type ---------------------------------------------------------------------------------


def _converts(step: Step) -> bool:
    y, x = step.results["y"].type, step.operands["x"].type
    return y is not x and all(type.name in (*FLOATS, "i32") for type in (y, x))


def _convert(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    loops = together(dims_of(y), dims_of(x))
    turned = None if loops is None else _turned(loops, y.type.type_size, x.type.type_size)
    if turned is not None:
        yield _transpose(y, x, turned, y.type.id, x.type.id)
        return
    values = {"y": y, "x": x, "y_type": y.type.id, "x_type": x.type.id}
    if loops is None or len(loops) > 4:
        n = blocks(y.spec.n_elements, THREADS)
        yield Launch(CONVERT_APART, CONVERT_ARGS, (n, 1, 1), THREADS, values=values)
        return
    to, of = layouts(y, x, loops)
    shaped = {**values, "y": to, "x": of}
    yield Launch(CONVERT, CONVERT_ARGS, over_pieces(to), THREADS, values=shaped)


for _x in (*FLOATS, "i32"):
    _forms = (CONVERT, CONVERT_APART, TRANSPOSE)
    kernel("cast", (_x,), forms=_forms, requires=_converts)(_convert)
    for _y in (*FLOATS, "i32"):
        if _x != _y:
            kernel("cpy", (_x, _y), forms=_forms, requires=_converts)(_convert)


# --- concat and repeat ----------------------------------------------------------------------------


def _concat(w: Work) -> Iterator[Launch]:
    y, a, b, dim = w["y"], w["a"], w["b"], w.params["dim"]
    before = a.ne[dim]
    step = y.nb[dim] if isinstance(before, Count) else before * y.nb[dim]
    aligned = w.address(y) | w.address(a) | w.address(b) | step
    unit = min(_part(y, x, aligned).unit for x in (a, b))
    to_a, to_b = _part(y, a, aligned | unit), _part(y, b, aligned | unit)
    values = {
        "to_a": to_a.y,
        "a": to_a.x,
        "to_b": to_b.y,
        "b": to_b.x,
        "n_before": before,
        "before_bytes": y.nb[dim],
        "unit": unit,
    }
    grid = blocks(max(to_a.n_units, to_b.n_units), THREADS), 2, 1
    yield Launch(CONCAT, CONCAT_ARGS, grid, THREADS, values=values)


def _part(y: Tensor, x: Tensor, aligned: int) -> Copy:
    """x to as many elements of y."""
    loops = together(dims_of(x, y.nb), dims_of(x))
    copy = None if loops is None else in_units(y, x, loops, aligned)
    assert copy is not None, "the loops of one shape, of plain elements"
    return copy


def _repeat(w: Work) -> Iterator[Launch]:
    y, x = w["y"], w["x"]
    unit = _unit_of_rows(y, x, w.address(y) | w.address(x))
    to, of = (
        Layout(t, (t.ne[0] * t.type.type_size // unit, *t.ne[1:]), (_step(t, unit), *t.nb[1:]))
        for t in (y, x)
    )
    yield _launch_move(REPEAT, Copy(to, of, unit))


def _unit_of_rows(y: Tensor, x: Tensor, aligned: int) -> int:
    """What to move of rows that are repeated: an element, or more where rows are whole in it."""
    size = x.type.type_size
    if not (x.rows_contiguous and y.rows_contiguous):
        return size
    strides = (n for t in (y, x) for n in t.nb[1:])
    return widest_unit((x.ne[0] * size, y.ne[0] * size), (aligned, *strides))


def _step(tensor: Tensor, unit: int) -> int:
    return max(unit, tensor.nb[0])


for _type in (name for name, type in TYPES.items() if not type.is_quantized):
    kernel("concat", (_type, _type), forms=[CONCAT])(_concat)
    kernel("repeat", (_type,), forms=[REPEAT])(_repeat)
