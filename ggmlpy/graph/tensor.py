"""Tensors of a lazy graph: leaves that hold bytes, and nodes that say how to compute them.

Building a node checks shapes and computes nothing. `ne` and `nb` are in ggml's order, the fastest
dimension first. Only `from_numpy` and `.numpy()` use numpy's order.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ggmlpy.common.arguments import WrongKind, as_float, checked, kind_of, refusal
from ggmlpy.common.notebook import table
from ggmlpy.common.scopes import qualified
from ggmlpy.errors import AllocationError, ArgumentError, GgmlpyError, ShapeError
from ggmlpy.graph.arrays import read_array
from ggmlpy.graph.buffer import HOST, Buffer, BufferType, Bytes, HostBuffer, Place, Rows
from ggmlpy.graph.count import Extent
from ggmlpy.graph.spec import MAX_DIMS, Dims, Spec
from ggmlpy.graph.types import TensorType, type_of

if TYPE_CHECKING:
    from ggmlpy.graph.op import Op


_MAX_SHOWN_BYTES = 1 << 24  # of a tensor whose values a notebook shows


class Flag(enum.Flag):
    """The role of a tensor in its graph."""

    NONE = 0
    INPUT = enum.auto()  # a leaf that the caller fills before each run
    OUTPUT = enum.auto()  # keeps its memory to the end of the run
    WEIGHT = enum.auto()  # a leaf that never changes: a backend may keep a packed copy
    STATE = enum.auto()  # a leaf that runs read and write, as a KV cache


# The functions behind operators and methods. ggmlpy.ops fills it, since graph must not import ops.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {}


class Tensor:
    """A leaf or a node of a graph.

    ne, nb, type          shape, byte strides, type
    op, src               how it is computed; None and () for a leaf
    place                 the buffer and offset of its data: of a leaf, or of a computed result
    view_src, view_offs   the tensor whose memory it shares, and the byte offset into it

    + - * / and unary - are ops.add, sub, mul, div and neg, or ops.scale with a number. There is no
    @: ops.mul_mat sums along dimension 0 of both factors, which is not what numpy does.
    """

    __array_ufunc__ = None  # with an array on the left numpy calls our operators, which raise

    __slots__ = (
        "__weakref__",
        "flags",
        "name",
        "op",
        "place",
        "spec",
        "src",
        "view_offs",
        "view_src",
    )

    def __init__(
        self,
        spec: Spec,
        *,
        op: Op | None = None,
        src: tuple[Tensor, ...] = (),
        name: str = "",
        flags: Flag = Flag.NONE,
        place: Place | None = None,
        view_src: Tensor | None = None,
        view_offs: int = 0,
    ) -> None:
        self.spec = spec
        self.op = op
        self.src = src
        self.name = name
        self.flags = flags
        self.place = place
        self.view_src = view_src
        self.view_offs = view_offs

    @property
    def ne(self) -> Dims:
        return self.spec.ne

    @property
    def nb(self) -> Dims:
        return self.spec.nb

    @property
    def type(self) -> TensorType:
        return self.spec.type

    @property
    def contiguous(self) -> bool:
        return self.spec.contiguous

    @property
    def rows_contiguous(self) -> bool:
        return self.spec.rows_contiguous

    @property
    def is_leaf(self) -> bool:
        return self.op is None

    @property
    def root(self) -> Tensor:
        """The tensor whose memory this one lies in: itself unless it is a view."""
        return self if self.view_src is None else self.view_src

    def named(self, name: str) -> Tensor:
        """Set the name, inside the current scope, and return the tensor itself."""
        if not isinstance(name, str):  # not @checked, which costs time for each node of a graph
            raise refusal("Tensor.named", "name", WrongKind("a string", name))
        self.name = qualified(name)
        return self

    def numpy(self) -> NDArray[Any]:
        """The values in numpy order (`ne` reversed, trailing ones left out), as a copy.

        bf16 and quantised types come back as f32. Raises GgmlpyError before the tensor is computed.
        """
        values = read_array(self._bytes(), self.spec)
        return values.reshape(values.shape[4 - self.spec.n_dims :])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """For `np.asarray` and `np.array`: what `numpy()` gives, which is always a copy.

        Raises GgmlpyError before the tensor is computed, ArgumentError for copy=False.
        """
        if copy is False:
            raise ArgumentError(
                f"{self}: an array of its values is a copy: copy must be True or None"
                " (Tensor.array() is a leaf's memory)"
            )
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def array(self) -> NDArray[Any]:
        """A plain leaf's elements in place, flat: writing to it changes the leaf.

        Inputs are filled through it between runs. Raises GgmlpyError for a node, for a leaf of
        another type and for memory that numpy cannot access.
        """
        place = self.place
        if place is None or self.type.dtype is None:
            raise GgmlpyError(f"{self}: only a leaf of a plain type can be written to in place")
        if not isinstance(place.buffer, HostBuffer):
            raise GgmlpyError(
                f"{self}: its data lies in memory of {place.buffer.type.device}, where numpy cannot"
                " write to it"
            )
        raw = place.buffer.data[place.offset : place.offset + self.spec.n_bytes]
        elements: NDArray[Any] = raw.view(self.type.dtype)
        return elements

    def tobytes(self) -> bytes:
        """The raw bytes, in `ne` order.

        Raises ShapeError for a tensor that is not contiguous, GgmlpyError before it is computed.
        """
        if not self.spec.contiguous:
            raise ShapeError(f"{self}: the bytes of a strided tensor: take ops.cont of it first")
        return self._bytes().tobytes()

    def _bytes(self) -> Bytes:
        """The bytes of its extent on the host. May be a view of its memory."""
        root = self.root
        if self.place is not None:
            return self.place.buffer.read(self.place.offset, self.spec.n_bytes)
        if root.is_leaf and root.place is not None and not _written(self):
            start = root.place.offset + self.view_offs
            return root.place.buffer.read(start, self.spec.n_bytes)
        raise GgmlpyError(f"{self} has no value yet: pass it to ggmlpy.compute first")

    def __repr__(self) -> str:
        what = "leaf" if self.op is None else str(self.op)
        return f"<{self.name or 'tensor'}: {self.spec} = {what}>"

    def _repr_html_(self) -> str:
        """For notebooks: what it is, and its values if it has any."""
        rows = [("type", self.type.name), ("ne", self.spec.shape_text)]
        if self.op is None:
            rows.append(("leaf", ", ".join(f.name or "" for f in self.flags) or "no flags"))
        else:
            rows.append(("op", str(self.op)))
            rows.append(("src", ", ".join(source.name or "tensor" for source in self.src)))
        return table(self.name or "tensor", rows, self._values_text())

    def _values_text(self) -> str:
        if self.spec.n_bytes > _MAX_SHOWN_BYTES:
            return ""
        try:
            return np.array2string(self.numpy(), threshold=100, max_line_width=100)
        except GgmlpyError:
            return "no values yet: pass it to ggmlpy.compute"

    def __add__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            return FUNCTIONS["add"](self, other)
        return FUNCTIONS["scale_bias"](self, 1.0, _number("+", other))

    def __sub__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            return FUNCTIONS["sub"](self, other)
        return FUNCTIONS["scale_bias"](self, 1.0, -_number("-", other))

    def __rsub__(self, other: float) -> Tensor:
        return FUNCTIONS["scale_bias"](self, -1.0, _number("-", other))

    def __mul__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            return FUNCTIONS["mul"](self, other)
        return FUNCTIONS["scale"](self, _number("*", other))

    def __truediv__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            return FUNCTIONS["div"](self, other)
        divisor = _number("/", other)
        factor = 1.0 / divisor if divisor else math.copysign(math.inf, divisor)  # as ops.div
        return FUNCTIONS["scale"](self, factor)

    def __neg__(self) -> Tensor:
        return FUNCTIONS["neg"](self)

    __radd__ = __add__
    __rmul__ = __mul__

    def reshape(self, *ne: int) -> Tensor:
        """ops.reshape_1d … reshape_4d."""
        if not 1 <= len(ne) <= MAX_DIMS:
            raise ArgumentError(f"reshape: there are {len(ne)} counts: there must be 1 to 4")
        return FUNCTIONS[f"reshape_{len(ne)}d"](self, *ne)

    def permute(self, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
        """ops.permute: dimension j becomes dimension axis_j."""
        return FUNCTIONS["permute"](self, axis0, axis1, axis2, axis3)

    def transpose(self) -> Tensor:
        """ops.transpose: the first two dimensions swapped."""
        return FUNCTIONS["transpose"](self)

    def cont(self) -> Tensor:
        """ops.cont: a contiguous copy."""
        return FUNCTIONS["cont"](self)

    def cast(self, type: str | TensorType) -> Tensor:
        """ops.cast: converted to another type."""
        return FUNCTIONS["cast"](self, type)


def stored_rows(leaf: Tensor) -> tuple[Buffer, Rows]:
    """The buffer and the rows of a contiguous leaf, for the methods of Buffer that take rows."""
    assert leaf.place is not None, f"{leaf} has no data"
    assert leaf.contiguous
    return leaf.place.buffer, Rows(leaf.place.offset, leaf.nb[1])


def tensors_of(where: str, given: Sequence[Tensor | Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """The tensors given one by one, or as one list. Raises ArgumentError for anything else."""
    single = given[0] if len(given) == 1 else None
    tensors = single if isinstance(single, list | tuple) else given
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{where}: argument {i} is {kind_of(tensor)}: it must be a tensor")
    return tuple(tensors)


def _number(operator: str, value: object) -> float:
    """The other side of an operator, where it is no tensor. Raises ArgumentError."""
    try:
        return as_float(value)
    except WrongKind as wrong:
        hint = ": ggmlpy.from_numpy makes one of it" if isinstance(value, np.ndarray) else ""
        raise ArgumentError(
            f"{operator}: one side is a tensor, the other {kind_of(value)},"
            f" which must be a tensor or {wrong}{hint}"
        ) from None


def _written(tensor: Tensor) -> bool:
    """Whether a view's value depends on a node that still has to run (set_rows, cpy)."""
    while tensor.op is not None:
        if tensor.op.computes:
            return True
        tensor = tensor.src[0]
    return False


@checked
def from_bytes(
    raw: bytes | bytearray | memoryview | NDArray[np.uint8],
    type: str | TensorType,
    ne: Sequence[int],
    *,
    name: str = "",
    flags: Flag = Flag.WEIGHT,
) -> Tensor:
    """A leaf of shape `ne` over stored bytes of any GGUF type. The bytes are shared, not copied.

    By default it is a weight, into which graphs cannot write; with `flags=Flag.STATE` they can, if
    the bytes are writable. Raises ShapeError for an unknown type, for a bad shape, and unless the
    number of bytes is that of type and shape; ArgumentError for a memoryview with gaps.
    """
    spec = Spec(ne, type_of(type))
    if isinstance(raw, memoryview) and not raw.c_contiguous:
        raise ArgumentError("from_bytes: raw is a memoryview with gaps: it must be contiguous")
    data = np.frombuffer(raw, np.uint8) if not isinstance(raw, np.ndarray) else raw.reshape(-1)
    if data.nbytes != spec.n_bytes:
        raise ShapeError(
            f"{name or 'from_bytes'}: {spec} takes {spec.n_bytes} bytes, not {data.nbytes}"
        )
    return Tensor(spec, name=name, flags=flags, place=Place(HostBuffer(data.view(np.uint8))))


@checked
def from_numpy(array: NDArray[Any], *, name: str = "") -> Tensor:
    """A leaf with the array's values: `ne` is the shape reversed.

    It shares the array's memory if that is contiguous, so a graph that writes into the leaf changes
    the array; if numpy calls the array read-only, such a graph raises WriteError. Raises ShapeError
    for a type that GGUF lacks, for more than four dimensions, and for an empty array.
    """
    array = np.ascontiguousarray(array)
    spec = Spec(array.shape[::-1] or (1,), type_of(array.dtype))
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Tensor(spec, name=name, place=Place(HostBuffer(native.reshape(-1).view(np.uint8))))


@checked
def zeros(
    type: str | TensorType,
    ne: Sequence[Extent],
    *,
    name: str = "",
    flags: Flag = Flag.NONE,
    buffer_type: BufferType = HOST,
) -> Tensor:
    """A leaf of shape `ne`, of zero bytes in memory of its own, as for an input or a state.

    Where a count of `ne` is a Count, memory is for its bound (see `Executable.set_counts`).

    Raises ShapeError for an unknown type or a bad shape, AllocationError.
    """
    spec = Spec(ne, type_of(type))
    try:
        buffer = buffer_type.allocate(buffer_type.tensor_bytes(spec))
    except AllocationError as error:
        raise AllocationError(f"{name or 'zeros'} {spec}: {error}") from None
    return Tensor(spec, name=name, flags=flags, place=Place(buffer))
