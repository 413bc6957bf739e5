"""Copies as nested loops: which elements of x go where in y, by as few and long loops as do it.

    x [64, 6, 3] contiguous to y [64, 18]                one loop
    x [128, T, 32] permuted from [128, 32, T], to y      a loop over 128, T and 32 each

Both tensors are walked in ne order. Where their shapes can be cut into the same loops, the loops
may run in any order, and those whose strides allow it become one: `together`. Shapes without a
common cut ([10, 3] with gaps to [6, 5] with gaps) leave each tensor loops of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy.backends.cuda.kernel import Layout
from ggmlpy.graph.count import Count, same_counts
from ggmlpy.graph.tensor import Tensor

_UNITS = (16, 8, 4, 2, 1)  # bytes that a thread can move at once
_MOST = 2**31 - 1  # a count is an i32


@dataclass(frozen=True, slots=True)
class Loop:
    """n steps, and the strides of both tensors in bytes. n may be a Count."""

    n: int
    y: int
    x: int


Dims = list[tuple[int, int]]  # a count and a stride each


def dims_of(tensor: Tensor, nb: Sequence[int] | None = None) -> Dims:
    """The dimensions of a tensor, in elements or in blocks, without those of one step. `nb` are
    strides in place of its own."""
    counts = (tensor.ne[0] // tensor.type.block_size, *tensor.ne[1:])
    dims = zip(counts, tensor.nb if nb is None else nb, strict=True)
    return [(n, stride) for n, stride in dims if not _is(n, 1)]


def together(y: Dims, x: Dims) -> list[Loop] | None:
    """Loops over both, those of the least strides of y first; None if there is no common cut."""
    cut = _common(y, x)
    return None if cut is None else merged(sorted(cut, key=lambda loop: (loop.y, loop.x)))


def merged(loops: Sequence[Loop]) -> list[Loop]:
    """Neighbours of which the outer goes on where the inner ends as one loop. A count that varies
    leaves a gap behind it, since strides are those of bounds."""
    found: list[Loop] = []
    for loop in loops:
        last = found[-1] if found else None
        if last is not None and _goes_on(last, loop):
            found[-1] = Loop(loop.n * last.n, last.y, last.x)
        else:
            found.append(loop)
    return found


def _goes_on(inner: Loop, outer: Loop) -> bool:
    return (
        not isinstance(inner.n, Count)
        and outer.y == inner.y * inner.n
        and outer.x == inner.x * inner.n
        and int(outer.n) * inner.n <= _MOST
    )


def _is(n: int, other: int) -> bool:
    """Whether two counts are equal in every run."""
    return n == other and same_counts((n,), (other,))


def blocked(y: Tensor, x: Tensor) -> tuple[int, list[Loop]] | None:
    """Elements of x to blocks of y: the stride of x between elements of a block, and loops over
    blocks; None if a block is not as many steps of one dimension of x."""
    size = y.type.block_size
    cut = _common([(size, 0), *dims_of(y)], dims_of(x))
    if cut is None or cut[0].n != size:
        return None
    loops = merged(sorted(cut[1:], key=lambda loop: loop.y))
    return (cut[0].x, loops) if len(loops) <= 4 else None


def _common(y: Dims, x: Dims) -> list[Loop] | None:
    """Cut the dimensions of both until they have the same counts."""
    ys, xs = y[::-1], x[::-1]
    loops: list[Loop] = []
    while ys and xs:
        (n, y_stride), (m, x_stride) = ys.pop(), xs.pop()
        least, most = (n, m) if n <= m else (m, n)
        loops.append(Loop(least, y_stride, x_stride))
        if _is(n, m):
            continue
        rest = most // least
        if isinstance(least, Count) or not _is(rest * least, most):
            return None
        if n <= m:
            xs.append((rest, x_stride * least))
        else:
            ys.append((rest, y_stride * least))
    return None if ys or xs else loops


# --- layouts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copy:
    """What a kernel gets of a copy: both tensors in units of so many bytes."""

    y: Layout
    x: Layout
    unit: int

    @property
    def n_units(self) -> int:
        a, b, c, d = self.y.ne
        return int(a) * int(b) * int(c) * int(d)


def layouts(y: Tensor, x: Tensor, loops: Sequence[Loop]) -> tuple[Layout, Layout]:
    """Up to four loops as the dimensions of both tensors."""
    return (
        _layout(y, [(loop.n, loop.y) for loop in loops]),
        _layout(x, [(loop.n, loop.x) for loop in loops]),
    )


def block_layout(tensor: Tensor) -> Layout:
    """A tensor in blocks."""
    n = tensor.ne[0] // tensor.type.block_size
    return Layout(tensor, (n, *tensor.ne[1:]), tensor.nb)


def _layout(tensor: Tensor, dims: Dims) -> Layout:
    assert len(dims) <= 4, f"{tensor} has too many loops"
    padded = [*dims, *[(1, 0)] * (4 - len(dims))]
    return Layout(tensor, tuple(n for n, _ in padded), tuple(stride for _, stride in padded))


def in_units(y: Tensor, x: Tensor, loops: Sequence[Loop], aligned: int) -> Copy | None:
    """Bytes moved as they are, by the widest unit that fits counts, strides and `aligned`, the
    addresses; None if that takes more than four loops."""
    nested = merged([Loop(y.type.type_size, 1, 1), *loops])
    unit = _unit(nested, aligned)
    counted = _counted(nested, unit)
    return Copy(*layouts(y, x, counted), unit) if len(counted) <= 4 else None


def in_units_apart(y: Tensor, x: Tensor, aligned: int) -> Copy:
    """The same where both tensors have loops of their own."""
    size = y.type.type_size
    nested_y, nested_x = (
        merged([Loop(size, 1, 1), *(Loop(n, stride, stride) for n, stride in dims_of(tensor))])
        for tensor in (y, x)
    )
    unit = min(_unit(nested_y, aligned), _unit(nested_x, aligned))
    y_layout, _ = layouts(y, y, _counted(nested_y, unit))
    _, x_layout = layouts(x, x, _counted(nested_x, unit))
    return Copy(y_layout, x_layout, unit)


def _unit(nested: Sequence[Loop], aligned: int) -> int:
    """The widest unit for loops of which the first is over bytes."""
    strides = [stride for loop in nested[1:] for stride in (loop.y, loop.x)]
    return widest_unit([nested[0].n], [aligned, *strides])


def widest_unit(counts: Sequence[int], strides: Sequence[int]) -> int:
    """The widest unit of which counts of bytes, in every run, and strides are whole multiples."""
    return next(
        unit
        for unit in _UNITS
        if all(_is(n // unit * unit, n) for n in counts)
        and all(stride % unit == 0 for stride in strides)
    )


def _counted(nested: Sequence[Loop], unit: int) -> list[Loop]:
    """The loops with units in place of bytes."""
    units = Loop(nested[0].n // unit, unit, unit)
    return [loop for loop in (units, *nested[1:]) if not _is(loop.n, 1)]
