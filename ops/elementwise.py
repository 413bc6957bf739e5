"""Arithmetic element by element: on two tensors, and on one with scalar parameters."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.quants import has_quantizer
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BF16, F16, F32, I32
from ggmlpy.ops.rows import check_ids

FLOATS = (F32, F16, BF16)  # types of elementwise ops; the result has the type of source 0


def repeat_to(x: Array, like: Array) -> Array:
    """x repeated to the shape of `like`."""
    copies = tuple(n // m for n, m in zip(like.shape, x.shape, strict=True))
    return x if set(copies) == {1} else np.tile(x, copies)


class Binary(Op):
    """The base of ops on two tensors, the second repeated to the shape of the first.

        y[i] = f(a[i], b[i mod b.ne])          a [...]  ->  y of a's shape and type

    a, b f32, f16 or bf16, any strides. Raises ShapeError unless b's counts divide a's.
    """

    __slots__ = ()

    in_place = True

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(a.type in FLOATS, "a must be f32, f16 or bf16")
        require(b.type in FLOATS, "b must be f32, f16 or bf16")
        require(b.can_repeat_to(a), "every dimension of a must be a multiple of b's")
        return Spec(a.ne, a.type)

    def reference(self, a: Array, b: Array) -> Array:
        wide = a.astype(np.float64)
        return self.combine(wide, repeat_to(b.astype(np.float64), wide))

    @abstractmethod
    def combine(self, a: Array, b: Array) -> Array:
        """f, on float64 arrays of one shape."""


@op("add")
@dataclass(frozen=True, slots=True)
class Add(Binary):
    """y = a + b; see Binary. a may also be of a type with a quantiser, with b f32."""

    def infer(self, a: Spec, b: Spec) -> Spec:
        if not a.type.is_quantized:
            return Binary.infer(self, a, b)
        require(has_quantizer(a.type), f"a must be of a type with a quantiser, {a.type} has none")
        require(b.type is F32, "b must be f32 where a is quantised")
        require(b.can_repeat_to(a), "every dimension of a must be a multiple of b's")
        return Spec(a.ne, a.type)

    def combine(self, a: Array, b: Array) -> Array:
        return a + b


@op("sub")
@dataclass(frozen=True, slots=True)
class Sub(Binary):
    """y = a - b; see Binary."""

    def combine(self, a: Array, b: Array) -> Array:
        return a - b


@op("mul")
@dataclass(frozen=True, slots=True)
class Mul(Binary):
    """y = a * b; see Binary."""

    def combine(self, a: Array, b: Array) -> Array:
        return a * b


@op("div")
@dataclass(frozen=True, slots=True)
class Div(Binary):
    """y = a / b; see Binary."""

    def combine(self, a: Array, b: Array) -> Array:
        return a / b


@op("add1")
@dataclass(frozen=True, slots=True)
class Add1(Binary):
    """y = a + b with b a single element; see Binary."""

    def infer(self, a: Spec, b: Spec) -> Spec:
        require(b.n_elements == 1, f"b has {b.n_elements} elements: it must have one")
        return Binary.infer(self, a, b)

    def combine(self, a: Array, b: Array) -> Array:
        return a + b


@op("add_id")
@dataclass(frozen=True, slots=True)
class AddId(Op):
    """Add to each row the row of b that ids selects: the biases of a mixture of experts.

        y[:, u, t] = a[:, u, t] + b[:, ids[u, t]]
        a [n, U, T] f32, b [n, E] f32, ids [U, T] i32  ->  y [n, U, T] f32

    Raises ShapeError for other shapes and types, IndexOutOfRange when run with an id outside b.
    """

    in_place = True

    def infer(self, a: Spec, b: Spec, ids: Spec) -> Spec:
        require(a.type is F32 and b.type is F32, "a and b must be f32")
        require(ids.type is I32, "ids must be i32")
        require(a.ne[0] == b.ne[0], f"first dimensions {a.ne[0]} and {b.ne[0]} must be equal")
        require(a.ne[3] == 1, "a must have at most 3 dimensions")
        require(b.ne[2:] == (1, 1), "b must have at most 2 dimensions")
        expected = Spec((a.ne[1], a.ne[2]), I32)
        require(
            ids.ne == expected.ne,
            f"ids must be {expected.shape_text}: one for each row of a",
        )
        return Spec(a.ne, F32)

    def reference(self, a: Array, b: Array, ids: Array) -> Array:
        check_ids(self.name, ids, b.shape[2], "rows of b")
        rows: Array = b[0, 0].astype(np.float64)[ids[0, 0]]  # numpy order [T, U, n]
        wide: Array = a.astype(np.float64)
        return wide + rows


class Mapped(Op):
    """The base of ops on one tensor, element by element: x f32, f16 or bf16, y like x."""

    __slots__ = ()

    in_place = True

    def infer(self, x: Spec) -> Spec:
        require(x.type in FLOATS, "x must be f32, f16 or bf16")
        return Spec(x.ne, x.type)

    def reference(self, x: Array) -> Array:
        return self.map(x.astype(np.float64))

    @abstractmethod
    def map(self, x: Array) -> Array:
        """The function, on a float64 array."""


@op("sqr")
@dataclass(frozen=True, slots=True)
class Sqr(Mapped):
    """y = x^2; see Mapped."""

    def map(self, x: Array) -> Array:
        return x * x


@op("sqrt")
@dataclass(frozen=True, slots=True)
class Sqrt(Mapped):
    """y = sqrt(x), NaN below 0; see Mapped."""

    def map(self, x: Array) -> Array:
        return np.sqrt(x)


@op("log")
@dataclass(frozen=True, slots=True)
class Log(Mapped):
    """y = ln(x), -inf at 0 and NaN below; see Mapped."""

    def map(self, x: Array) -> Array:
        return np.log(x)


@op("sin")
@dataclass(frozen=True, slots=True)
class Sin(Mapped):
    """y = sin(x), x in radians; see Mapped."""

    def map(self, x: Array) -> Array:
        return np.sin(x)


@op("cos")
@dataclass(frozen=True, slots=True)
class Cos(Mapped):
    """y = cos(x), x in radians; see Mapped."""

    def map(self, x: Array) -> Array:
        return np.cos(x)


@op("scale")
@dataclass(frozen=True, slots=True)
class Scale(Mapped):
    """y = s * x + b; see Mapped."""

    s: float
    b: float = 0.0

    def map(self, x: Array) -> Array:
        return self.s * x + self.b


@op("clamp")
@dataclass(frozen=True, slots=True)
class Clamp(Mapped):
    """y = x held between min and max; a NaN stays; see Mapped.

    Raises ShapeError where min is above max. (ggml's clamp overwrites x; this one does not.)
    """

    min: float
    max: float

    def infer(self, x: Spec) -> Spec:
        require(self.min <= self.max, f"min {self.min:g} must not be above max {self.max:g}")
        return Mapped.infer(self, x)

    def map(self, x: Array) -> Array:
        return np.clip(x, self.min, self.max)


@checked
def add(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_add`; see Add."""
    return Add().node(a, b)


@checked
def sub(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_sub`; see Sub."""
    return Sub().node(a, b)


@checked
def mul(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_mul`; see Mul."""
    return Mul().node(a, b)


@checked
def div(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_div`; see Div."""
    return Div().node(a, b)


@checked
def add1(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_add1`; see Add1."""
    return Add1().node(a, b)


@checked
def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """`ggml_add_id`; see AddId."""
    return AddId().node(a, b, ids)


@checked
def sqr(a: Tensor) -> Tensor:
    """`ggml_sqr`; see Sqr."""
    return Sqr().node(a)


@checked
def sqrt(a: Tensor) -> Tensor:
    """`ggml_sqrt`; see Sqrt."""
    return Sqrt().node(a)


@checked
def log(a: Tensor) -> Tensor:
    """`ggml_log`; see Log."""
    return Log().node(a)


@checked
def sin(a: Tensor) -> Tensor:
    """`ggml_sin`; see Sin."""
    return Sin().node(a)


@checked
def cos(a: Tensor) -> Tensor:
    """`ggml_cos`; see Cos."""
    return Cos().node(a)


@checked
def scale(a: Tensor, s: float) -> Tensor:
    """`ggml_scale`; see Scale."""
    return Scale(s).node(a)


@checked
def scale_bias(a: Tensor, s: float, b: float) -> Tensor:
    """`ggml_scale_bias`; see Scale."""
    return Scale(s, b).node(a)


@checked
def clamp(a: Tensor, min: float, max: float) -> Tensor:
    """`ggml_clamp`; see Clamp."""
    return Clamp(min, max).node(a)
