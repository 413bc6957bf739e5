"""Ops that build or rearrange tensors: concat, repeat, pad, roll, fill, arange."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.count import Extent
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32


@op("concat")
@dataclass(frozen=True, slots=True)
class Concat(Op):
    """Concatenate a and b along one dimension.

        a [...], b [...] of one type that is not quantised  ->  y with ne[dim] the sum of theirs

    Raises ShapeError unless types are equal, and counts in all dimensions but dim (0 to 3).
    """

    dim: int

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(0 <= self.dim < 4, f"dim is {self.dim}: it must be 0 to 3")
        require(a.type is b.type, "a and b must have the same type")
        require(not a.type.is_quantized, "a and b must not be quantised")
        ne = list(a.ne)
        ne[self.dim] = b.ne[self.dim]
        require(tuple(ne) == b.ne, f"a and b must be equal in every dimension but {self.dim}")
        ne[self.dim] += a.ne[self.dim]
        return Spec(ne, a.type)

    def reference(self, a: Array, b: Array) -> Array:
        return np.concatenate([a, b], axis=3 - self.dim)


@op("repeat")
@dataclass(frozen=True, slots=True)
class Repeat(Op):
    """Repeat x in each dimension.

        y[i3, i2, i1, i0] = x[i3 % n3, i2 % n2, i1 % n1, i0 % n0]
        x [n0, n1, n2, n3] of a type that is not quantised  ->  y [ne] of the same type

    Raises ShapeError unless every count of ne is a multiple of x's.
    """

    ne: Dims

    def infer(self, x: Spec) -> Spec:
        require(not x.type.is_quantized, "x must not be quantised")
        y = Spec(self.ne, x.type)
        require(x.can_repeat_to(y), f"every dimension of {y.shape_text} must be a multiple of x's")
        return y

    def reference(self, x: Array) -> Array:
        copies = [n // m for n, m in zip(self.ne[::-1], x.shape, strict=True)]
        return np.tile(x, copies)


@op("repeat_back")
@dataclass(frozen=True, slots=True)
class RepeatBack(Op):
    """The gradient of repeat: the sum of the copies.

        y[i] = sum of x[j] over all j with j % ne = i, in every dimension
        x [...] f32 with contiguous rows  ->  y [ne] f32

    Raises ShapeError unless every count of x is a multiple of ne's.
    """

    ne: Dims

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        y = Spec(self.ne, F32)
        require(y.can_repeat_to(x), f"every dimension of x must be a multiple of {y.shape_text}")
        return y

    def reference(self, x: Array) -> Array:
        shape = [n for m, n in zip(x.shape, self.ne[::-1], strict=True) for n in (m // n, n)]
        y: Array = x.astype(np.float64).reshape(shape).sum(axis=(0, 2, 4, 6))
        return y


@op("pad")
@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Zeros before (lp) and after (rp) each dimension; with `circular` the elements of the other
    end, as if x went on periodically.

    x [n0, n1, n2, n3] f32  ->  y [lp0 + n0 + rp0, ...] f32

    Raises ShapeError unless x is f32 and no count is below 0.
    """

    lp0: int
    rp0: int
    lp1: int
    rp1: int
    lp2: int
    rp2: int
    lp3: int
    rp3: int
    circular: bool = False

    @property
    def _widths(self) -> list[tuple[int, int]]:
        """(before, after) by dimension, in ne order."""
        return [
            (self.lp0, self.rp0),
            (self.lp1, self.rp1),
            (self.lp2, self.rp2),
            (self.lp3, self.rp3),
        ]

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32, "x must be f32")
        require(
            min(min(pair) for pair in self._widths) >= 0,
            f"paddings are {self._widths}: none may be below 0",
        )
        counts = zip(x.ne, self._widths, strict=True)
        return Spec([n + before + after for n, (before, after) in counts], F32)

    def reference(self, x: Array) -> Array:
        return np.pad(x, self._widths[::-1], mode="wrap" if self.circular else "constant")


@op("pad_reflect_1d")
@dataclass(frozen=True, slots=True)
class PadReflect1d(Op):
    """Mirror images of a row before and after it, without its end elements.

        y[i] = x[|i - p0|], from the right end: x[2 (n - 1) - (i - p0)]
        x [n, ...] f32  ->  y [p0 + n + p1, ...] f32

    Raises ShapeError unless x is f32 with contiguous rows, and paddings are 0 to n - 1.
    """

    p0: int
    p1: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        require(
            min(self.p0, self.p1) >= 0 and max(self.p0, self.p1) < x.ne[0],
            f"paddings are {self.p0} and {self.p1}: they must be 0 to {int(x.ne[0]) - 1}",
        )
        return Spec((self.p0 + x.ne[0] + self.p1, *x.ne[1:]), F32)

    def reference(self, x: Array) -> Array:
        return np.pad(x, ((0, 0), (0, 0), (0, 0), (self.p0, self.p1)), mode="reflect")


@op("roll")
@dataclass(frozen=True, slots=True)
class Roll(Op):
    """Shift the elements in each dimension; those that leave one end come in at the other.

        y[(i + shift) % n] = x[i], in every dimension          x [...] f32  ->  y like x

    Shifts may be negative, and of any size (ggml's are below the counts). Raises ShapeError unless
    x is f32 with contiguous rows.
    """

    shift0: int
    shift1: int
    shift2: int
    shift3: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        return Spec(x.ne, F32)

    def reference(self, x: Array) -> Array:
        return np.roll(x, (self.shift3, self.shift2, self.shift1, self.shift0), axis=(0, 1, 2, 3))


@op("fill")
@dataclass(frozen=True, slots=True)
class Fill(Op):
    """Every element is c, rounded to the type: x [...] f32 or f16  ->  y like x, contiguous."""

    c: float

    def infer(self, x: Spec) -> Spec:
        require(x.type in (F32, F16), "x must be f32 or f16")
        return Spec(x.ne, x.type)

    def reference(self, x: Array) -> Array:
        return np.full(x.shape, np.float32(self.c))


@op("arange")
@dataclass(frozen=True, slots=True)
class Arange(Op):
    """start, start + step, ... up to but not including stop.

        y[i] = start + step * i          ->  y [ceil((stop - start) / step)] f32

    Raises ShapeError unless there is at least one value.
    """

    start: float
    stop: float
    step: float

    def infer(self) -> Spec:
        n = (self.stop - self.start) / self.step if self.step != 0 else 0.0
        count = math.ceil(n) if math.isfinite(n) else 0
        require(
            count >= 1,
            f"from {self.start:g} to {self.stop:g} by {self.step:g} is no value: "
            "there must be at least one",
        )
        return Spec((count,), F32)

    def reference(self) -> Array:
        steps = np.arange(self.infer().ne[0], dtype=np.float64)
        return (self.start + self.step * steps).reshape(1, 1, 1, -1)


@checked
def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """`ggml_concat`; see Concat."""
    return Concat(dim).node(a, b)


@checked
def repeat(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_repeat`: a up to the shape of b; see Repeat."""
    return Repeat(b.ne).node(a)


@checked
def repeat_4d(a: Tensor, ne0: Extent, ne1: Extent, ne2: Extent, ne3: Extent) -> Tensor:
    """`ggml_repeat_4d`; see Repeat."""
    return Repeat(as_ne((ne0, ne1, ne2, ne3))).node(a)


@checked
def pad(a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """`ggml_pad`: zeros after each dimension; see Pad."""
    return Pad(0, p0, 0, p1, 0, p2, 0, p3).node(a)


@checked
def pad_ext(
    a: Tensor, lp0: int, rp0: int, lp1: int, rp1: int, lp2: int, rp2: int, lp3: int, rp3: int
) -> Tensor:
    """`ggml_pad_ext`; see Pad."""
    return Pad(lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3).node(a)


@checked
def repeat_back(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_repeat_back`: the copies in a summed up to the shape of b; see RepeatBack."""
    return RepeatBack(b.ne).node(a)


@checked
def pad_circular(a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """`ggml_pad_circular`: a's first elements after each dimension; see Pad."""
    return Pad(0, p0, 0, p1, 0, p2, 0, p3, circular=True).node(a)


@checked
def pad_ext_circular(
    a: Tensor, lp0: int, rp0: int, lp1: int, rp1: int, lp2: int, rp2: int, lp3: int, rp3: int
) -> Tensor:
    """`ggml_pad_ext_circular`; see Pad."""
    return Pad(lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3, circular=True).node(a)


@checked
def pad_reflect_1d(a: Tensor, p0: int, p1: int) -> Tensor:
    """`ggml_pad_reflect_1d`; see PadReflect1d."""
    return PadReflect1d(p0, p1).node(a)


@checked
def roll(a: Tensor, shift0: int, shift1: int, shift2: int, shift3: int) -> Tensor:
    """`ggml_roll`; see Roll."""
    return Roll(shift0, shift1, shift2, shift3).node(a)


@checked
def fill(a: Tensor, c: float) -> Tensor:
    """`ggml_fill`: a tensor like a; see Fill."""
    return Fill(c).node(a)


@checked
def arange(start: float, stop: float, step: float) -> Tensor:
    """`ggml_arange`; see Arange."""
    return Arange(start, stop, step).node()
