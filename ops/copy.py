"""Copies: to contiguous memory, to another type, into another tensor.

A copy to the same type keeps every block's bytes. The references work on values: for a quantised
type they give the same bytes only for blocks that its quantiser made, and for a type without a
quantiser a copy needs a backend that copies blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.common.arguments import checked
from ggmlpy.graph.count import Extent
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.quants import has_quantizer
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, I32, TensorType, type_of


def require_convertible(source: TensorType, target: TensorType) -> None:
    """Raise ShapeError unless there is a conversion from `source` to `target`.

    Conversions: any type to itself; float to float; float to any type with a quantiser; quantised
    to f32; i32 to f32 and back (towards zero).
    """
    require(
        source is target
        or (source.is_float and target.is_float)
        or (source.is_float and target.is_quantized and has_quantizer(target))
        or (source.is_quantized and target is F32)
        or (source, target) in ((I32, F32), (F32, I32)),
        f"there is no copy from {source} to {target}: it must be the same type, float to float, "
        "float to a type with a quantiser, quantised to f32, or between i32 and f32",
    )


@op("dup")
@dataclass(frozen=True, slots=True)
class Dup(Op):
    """A contiguous copy.

    y[i] = x[i]          x [...] any type, any strides  ->  y like x, contiguous
    """

    def infer(self, x: Spec) -> Spec:
        return Spec(x.ne, x.type)

    def reference(self, x: Array) -> Array:
        return x


@op("cont")
@dataclass(frozen=True, slots=True)
class Cont(Op):
    """A contiguous copy, possibly with another shape.

        the elements of y in ne order = the elements of x in ne order

    x [...] any type, any strides  ->  y [ne] of the same type. Raises ShapeError unless the
    number of elements stays the same.
    """

    ne: Dims

    def infer(self, x: Spec) -> Spec:
        y = Spec(self.ne, x.type)
        require(
            x.n_elements == y.n_elements,
            f"ne {y.shape_text} has {y.n_elements} elements and x has {x.n_elements}: "
            "they must be equal",
        )
        return y

    def reference(self, x: Array) -> Array:
        return x.reshape(self.ne[::-1])


@op("cast")
@dataclass(frozen=True, slots=True)
class Cast(Op):
    """A contiguous copy in another type.

        y[i] = type(x[i])          x [...], any strides  ->  y of the same shape

    Raises ShapeError for a pair of types without a conversion (see require_convertible).
    """

    type: TensorType

    def infer(self, x: Spec) -> Spec:
        require_convertible(x.type, self.type)
        return Spec(x.ne, self.type)

    def reference(self, x: Array) -> Array:
        return x


@op("cpy")
@dataclass(frozen=True, slots=True)
class Cpy(Op):
    """Write x into dst, converting; the result is dst.

        the elements of dst in ne order = the elements of x in ne order

    x and dst any strides and any shapes with as many elements. Raises ShapeError unless the
    counts are equal and the types have a conversion (see require_convertible); WriteError when
    planned where dst is a weight or read-only, or shares memory with x without being the same
    elements of the same type.
    """

    view_of = 1
    in_place = True

    def infer(self, x: Spec, dst: Spec) -> Spec:
        require(
            x.n_elements == dst.n_elements,
            f"x has {x.n_elements} elements and dst has {dst.n_elements}: they must be equal",
        )
        require_convertible(x.type, dst.type)
        return dst

    def reference(self, x: Array, dst: Array) -> Array:
        return x.reshape(dst.shape)


@checked
def dup(a: Tensor) -> Tensor:
    """`ggml_dup`; see Dup."""
    return Dup().node(a)


@checked
def cont(a: Tensor) -> Tensor:
    """`ggml_cont`; see Cont."""
    return Cont(a.ne).node(a)


@checked
def cont_1d(a: Tensor, ne0: Extent) -> Tensor:
    """`ggml_cont_1d`; see Cont."""
    return Cont(as_ne((ne0,))).node(a)


@checked
def cont_2d(a: Tensor, ne0: Extent, ne1: Extent) -> Tensor:
    """`ggml_cont_2d`; see Cont."""
    return Cont(as_ne((ne0, ne1))).node(a)


@checked
def cont_3d(a: Tensor, ne0: Extent, ne1: Extent, ne2: Extent) -> Tensor:
    """`ggml_cont_3d`; see Cont."""
    return Cont(as_ne((ne0, ne1, ne2))).node(a)


@checked
def cont_4d(a: Tensor, ne0: Extent, ne1: Extent, ne2: Extent, ne3: Extent) -> Tensor:
    """`ggml_cont_4d`; see Cont."""
    return Cont(as_ne((ne0, ne1, ne2, ne3))).node(a)


@checked
def cast(a: Tensor, type: str | TensorType) -> Tensor:
    """`ggml_cast`; `type` by name or as a TensorType; see Cast."""
    return Cast(type_of(type)).node(a)


@checked
def cpy(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_cpy`: a into b; see Cpy."""
    return Cpy().node(a, b)
