"""Ops that change a region of a tensor: acc adds to it, set replaces it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32


class Region(Op):
    """The base: y is a, but for a region that has b's shape, strides nb1 to nb3 and an offset in
    bytes, as a view of a would have.

        a contiguous, b of a's type with contiguous rows  ->  y like a

    Raises ShapeError unless the region lies within a, starts at an element and does not overlap
    itself.
    """

    __slots__ = ()

    nb1: int
    nb2: int
    nb3: int
    offset: int

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(a.contiguous and b.rows_contiguous, "a must be contiguous, b's rows too")
        require(a.type is b.type and not a.type.is_quantized, "a and b must be of one plain type")
        numbers = {"nb1": self.nb1, "nb2": self.nb2, "nb3": self.nb3, "offset": self.offset}
        size = a.type.type_size
        for name, value in numbers.items():
            require(
                value >= 0 and value % size == 0,
                f"{name} is {value}: it must be a multiple of {size}, an element's bytes",
            )
        inner = int(b.ne[0]) * size
        for dim, stride in enumerate((self.nb1, self.nb2, self.nb3), 1):
            n = int(b.ne[dim])
            if n > 1:
                require(
                    stride >= inner,
                    f"nb{dim} is {stride}: it must be at least {inner}, or the region overlaps",
                )
                inner = stride * (n - 1) + inner
        require(
            self.offset + inner <= a.n_bytes,
            f"the region ends at byte {self.offset + inner}: a has {a.n_bytes}",
        )
        return Spec(a.ne, a.type)

    def reference(self, a: Array, b: Array) -> Array:
        size = a.dtype.itemsize
        y = np.ascontiguousarray(a).reshape(-1).copy()
        strides = (self.nb3, self.nb2, self.nb1, size)
        region = as_strided(y[self.offset // size :], b.shape, strides)
        if y.dtype.kind != "f":
            region[...] = self.changed(region, b)
            return y.reshape(a.shape)
        wide = self.changed(region.astype(np.float64), b.astype(np.float64))
        exact = y.astype(np.float64)
        as_strided(exact[self.offset // size :], b.shape, [n * 8 // size for n in strides])[...] = (
            wide
        )
        return exact.reshape(a.shape)

    @abstractmethod
    def changed(self, region: Array, b: Array) -> Array:
        """The region's new values."""


@op("acc")
@dataclass(frozen=True, slots=True)
class Acc(Region):
    """b is added to the region; f32 only. See Region."""

    nb1: int
    nb2: int
    nb3: int
    offset: int

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(a.type is F32, "a must be f32")
        return Region.infer(self, a, b)

    def changed(self, region: Array, b: Array) -> Array:
        return region + b


@op("set")
@dataclass(frozen=True, slots=True)
class SetRegion(Region):
    """b replaces the region; f32, f16, i32 and other plain types but bf16. See Region."""

    nb1: int
    nb2: int
    nb3: int
    offset: int

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(a.type.dtype is not None, "a must be of a plain type other than bf16")
        return Region.infer(self, a, b)

    def changed(self, region: Array, b: Array) -> Array:
        return b


@checked
def acc(a: Tensor, b: Tensor, nb1: int, nb2: int, nb3: int, offset: int) -> Tensor:
    """`ggml_acc`; see Acc."""
    return Acc(nb1, nb2, nb3, offset).node(a, b)


@checked
def set(a: Tensor, b: Tensor, nb1: int, nb2: int, nb3: int, offset: int) -> Tensor:
    """`ggml_set`; see SetRegion."""
    return SetRegion(nb1, nb2, nb3, offset).node(a, b)


@checked
def set_1d(a: Tensor, b: Tensor, offset: int) -> Tensor:
    """`ggml_set_1d`: with the strides of a; see SetRegion."""
    return SetRegion(*a.nb[1:], offset).node(a, b)


@checked
def set_2d(a: Tensor, b: Tensor, nb1: int, offset: int) -> Tensor:
    """`ggml_set_2d`: with the other strides of a; see SetRegion."""
    return SetRegion(nb1, *a.nb[2:], offset).node(a, b)
