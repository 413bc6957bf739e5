"""Ops that build a larger tensor: concat, repeat, pad, arange."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.count import Extent
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32


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


@op("pad")
@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Zeros before (lp) and after (rp) each dimension.

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
        return np.pad(x, self._widths[::-1])


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
def arange(start: float, stop: float, step: float) -> Tensor:
    """`ggml_arange`; see Arange."""
    return Arange(start, stop, step).node()
