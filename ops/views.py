"""Views: other shapes and strides over the same memory, without computation.

`nb` and offsets are in bytes; `nb[0]` of a view is the size of an element (of a block for a
quantised type, whose dimension 0 must stay whole blocks). Counts that a run sets may be extents,
but not part of strides and offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.common.arguments import checked
from ggmlpy.graph.count import Extent, Fixed
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor

MAX_ELEMENTS = 1 << 59  # strides may be 0, so memory is no limit; their bytes must fit 63 bits


class MemoryView(Op):
    """The base of ops whose result shares source 0's memory and needs no computing."""

    __slots__ = ()

    view_of = 0
    computes = False

    def reference(self, x: Array) -> Array:
        raise AssertionError(f"{self.name} runs nothing: its values are read through its strides")


@op("view")
@dataclass(frozen=True, slots=True)
class View(MemoryView):
    """A strided window of x's memory.

        y[i3, i2, i1, i0] = the element at x's first byte + offset + sum_d i_d * nb[d]

    x [...] any type  ->  y [ne] of the same type. Raises ShapeError unless the strided extent of
    y (from its first byte to the end of its last element) lies inside that of x, offset and strides
    are whole elements, and elements are no more than 2^59. (ggml checks the extent that y would
    have without gaps.)
    """

    suffix = " (view)"

    ne: Dims
    nb: tuple[int, int, int] | None  # nb[1], nb[2], nb[3]; None: contiguous
    offset: int

    def infer(self, x: Spec) -> Spec:
        y = Spec(self.ne, x.type)
        if self.nb is not None:
            y = Spec(self.ne, x.type, (x.type.type_size, *self.nb))
        unit = x.type.type_size
        for d, (n, stride) in enumerate(zip(y.ne, y.nb, strict=True)):
            require(
                n == 1 or (stride >= 0 and stride % unit == 0),
                f"nb{d} is {stride}: it must be a multiple of {x.type}'s {unit} bytes",
            )
        require(
            self.offset >= 0 and self.offset % unit == 0,
            f"offset is {self.offset}: it must be a multiple of {x.type}'s {unit} bytes",
        )
        require(
            y.n_elements <= MAX_ELEMENTS,
            f"ne {y.shape_text} has {y.n_elements} elements: it must have at most 2^59",
        )
        end = self.offset + y.n_bytes
        require(
            end <= x.n_bytes,
            f"the view ends at byte {end} and x at byte {x.n_bytes}: it must lie inside x",
        )
        return y

    def view_offset(self, x: Spec) -> int:
        return self.offset


@op("reshape")
@dataclass(frozen=True, slots=True)
class Reshape(MemoryView):
    """The same elements in the same order, with another shape.

    x contiguous  ->  y [ne], contiguous. Raises ShapeError unless x is contiguous and the number
    of elements stays the same.
    """

    suffix = " (reshaped)"

    ne: Dims

    def infer(self, x: Spec) -> Spec:
        y = Spec(self.ne, x.type)
        require(
            x.n_elements == y.n_elements,
            f"ne {y.shape_text} has {y.n_elements} elements and x has {x.n_elements}: "
            "they must be equal",
        )
        require(x.contiguous, "x must be contiguous (take ops.cont of it first)")
        return y


def _permuted(x: Spec, axes: Dims) -> Spec:
    ne, nb = [1] * 4, [0] * 4
    for source, axis in enumerate(axes):
        ne[axis] = x.ne[source]
        nb[axis] = x.nb[source]
    return Spec(ne, x.type, (nb[0], nb[1], nb[2], nb[3]))


@op("permute")
@dataclass(frozen=True, slots=True)
class Permute(MemoryView):
    """Dimension j of x becomes dimension axes[j] of y: the inverse of numpy.transpose's order.

        y.ne[axes[j]] = x.ne[j], y.nb[axes[j]] = x.nb[j]

    Raises ShapeError unless axes are 0, 1, 2, 3 in some order, with 0 first for a quantised type.
    """

    suffix = " (permuted)"

    axes: Dims

    def infer(self, x: Spec) -> Spec:
        require(
            sorted(self.axes) == [0, 1, 2, 3],
            f"axes are {list(self.axes)}: they must be 0, 1, 2 and 3 in some order",
        )
        require(
            not x.type.is_quantized or self.axes[0] == 0,
            f"dimension 0 of {x.type} must stay dimension 0: its elements lie in blocks",
        )
        return _permuted(x, self.axes)


@op("transpose")
@dataclass(frozen=True, slots=True)
class Transpose(MemoryView):
    """The first two dimensions swapped: permute(1, 0, 2, 3). Not for quantised types."""

    suffix = " (transposed)"

    def infer(self, x: Spec) -> Spec:
        require(
            not x.type.is_quantized,
            f"dimension 0 of {x.type} must stay dimension 0: its elements lie in blocks",
        )
        return _permuted(x, (1, 0, 2, 3))


@checked
def view_1d(a: Tensor, ne0: Extent, offset: Fixed) -> Tensor:
    """`ggml_view_1d`; see View."""
    return View(as_ne((ne0,)), None, offset).node(a)


@checked
def view_2d(a: Tensor, ne0: Extent, ne1: Extent, nb1: Fixed, offset: Fixed) -> Tensor:
    """`ggml_view_2d`; see View."""
    ne = as_ne((ne0, ne1))
    return View(ne, (nb1, nb1 * int(ne1), nb1 * int(ne1)), offset).node(a)


@checked
def view_3d(
    a: Tensor, ne0: Extent, ne1: Extent, ne2: Extent, nb1: Fixed, nb2: Fixed, offset: Fixed
) -> Tensor:
    """`ggml_view_3d`; see View."""
    ne = as_ne((ne0, ne1, ne2))
    return View(ne, (nb1, nb2, nb2 * int(ne2)), offset).node(a)


@checked
def view_4d(
    a: Tensor,
    ne0: Extent,
    ne1: Extent,
    ne2: Extent,
    ne3: Extent,
    nb1: Fixed,
    nb2: Fixed,
    nb3: Fixed,
    offset: Fixed,
) -> Tensor:
    """`ggml_view_4d`; see View."""
    return View(as_ne((ne0, ne1, ne2, ne3)), (nb1, nb2, nb3), offset).node(a)


@checked
def reshape(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_reshape`: a in the shape of b; see Reshape."""
    return Reshape(b.ne).node(a)


@checked
def reshape_1d(a: Tensor, ne0: Extent) -> Tensor:
    """`ggml_reshape_1d`; see Reshape."""
    return Reshape(as_ne((ne0,))).node(a)


@checked
def reshape_2d(a: Tensor, ne0: Extent, ne1: Extent) -> Tensor:
    """`ggml_reshape_2d`; see Reshape."""
    return Reshape(as_ne((ne0, ne1))).node(a)


@checked
def reshape_3d(a: Tensor, ne0: Extent, ne1: Extent, ne2: Extent) -> Tensor:
    """`ggml_reshape_3d`; see Reshape."""
    return Reshape(as_ne((ne0, ne1, ne2))).node(a)


@checked
def reshape_4d(a: Tensor, ne0: Extent, ne1: Extent, ne2: Extent, ne3: Extent) -> Tensor:
    """`ggml_reshape_4d`; see Reshape."""
    return Reshape(as_ne((ne0, ne1, ne2, ne3))).node(a)


@checked
def permute(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """`ggml_permute`: dimension j becomes dimension axis_j; see Permute."""
    return Permute((axis0, axis1, axis2, axis3)).node(a)


@checked
def transpose(a: Tensor) -> Tensor:
    """`ggml_transpose`; see Transpose."""
    return Transpose().node(a)
