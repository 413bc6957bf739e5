"""Functions of one tensor, element by element: the unary family, and maps with parameters.

One kernel for contiguous f32 and one for any strides and types, with the function compiled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.elements import PIECE, read_elements, write_elements
from ggmlpy.backends.cpu.kernels.segments import SEGMENT, n_segments
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd import arith, math
from ggmlpy.backends.cpu.simd.arith import (
    absolute,
    copy_sign,
    equal,
    fma,
    less,
    maximum,
    minimum,
    quotient,
    select,
    splat_f32x16,
)
from ggmlpy.backends.cpu.simd.convert import f32_to_i32, i32_to_f32
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.math import exp, log, tanh
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    store_f32x16,
    store_f32x16_part,
)

FIELDS = [("y", TENSOR), ("x", TENSOR)]


def _rows(node: Any) -> bool:
    return types.rows_ok(node) and types.rows_ok(node.src[0])


def _bind_type(node: Any, builder: Any) -> dict[str, float]:
    return {"type": types.type_field(node)}


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return 4 * PIECE * n_threads


def mapped(op: str, params: Sequence[str], function: Inline) -> None:
    """The kernels of one op, y = function(record, vector of x); `params` are f32 of the record."""
    fields = [*FIELDS, *((name, "f4") for name in params)]
    any_fields = [*fields, ("type", "i4"), ("scratch", "i8")]

    @kernel(op, ("f32",), args=np.dtype(fields, align=True), requires=_rows, name=f"{op}_f32")
    def map_f32(p: Record, ith: Int, nth: Int) -> None:
        """By segments of rows."""
        per_row = n_segments(p.x.ne0, SEGMENT)
        tasks = n_rows(p.x) * per_row
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * SEGMENT
            x = row_ptr(p.x, row) + 4 * start
            y = row_ptr(p.y, row) + 4 * start
            m = min(SEGMENT, p.x.ne0 - start)
            for i in range(0, m, 16):
                if m - i >= 16:
                    store_f32x16(y + 4 * i, function(p, load_f32x16(x + 4 * i)))
                else:
                    v = function(p, load_f32x16_part(x + 4 * i, m - i))
                    store_f32x16_part(y + 4 * i, v, m - i)

    @kernel(
        op,
        ("f32",),
        args=np.dtype(any_fields, align=True),
        bind=_bind_type,
        scratch_bytes=_scratch_bytes,
        name=f"{op}_any",
        also=[(op, ("f16",)), (op, ("bf16",))],
    )
    def map_any(p: Record, ith: Int, nth: Int) -> None:
        """Any strides, f32, f16 and bf16: by pieces as f32 in scratch memory."""
        per_row = n_segments(p.x.ne0, PIECE)
        tasks = n_rows(p.x) * per_row
        piece = p.scratch + 4 * PIECE * ith
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * PIECE
            m = min(PIECE, p.x.ne0 - start)
            read_elements(p.type, row_ptr(p.x, row) + start * p.x.nb0, p.x.nb0, m, piece)
            for i in range(0, 4 * m, 64):
                store_f32x16(piece + i, function(p, load_f32x16(piece + i)))
            write_elements(p.type, piece, row_ptr(p.y, row) + start * p.y.nb0, p.y.nb0, m)


def _without_record(intrinsic: Intrinsic | Inline) -> Inline:
    @inline
    def function(p: Record, x: Any) -> Any:
        return intrinsic(x)

    return function


# --- the functions: 16 f32 in, 16 f32 out; NaN stays NaN ------------------------------------------


@inline
def sqr(x: Any) -> Any:
    return x * x


@inline
def neg(x: Any) -> Any:
    return x * -1.0


@inline
def step(x: Any) -> Any:
    return select(less(0.0, x), splat_f32x16(1.0), 0.0)


@inline
def sgn(x: Any) -> Any:
    return select(less(0.0, absolute(x)), copy_sign(splat_f32x16(1.0), x), x)


@inline
def relu(x: Any) -> Any:
    return maximum(0.0, x)


@inline
def expm1(x: Any) -> Any:
    """2 t / (1 - t) with t = tanh(x / 2) near 0, where exp(x) - 1 would cancel."""
    t = tanh(x * 0.5)
    return select(less(absolute(x), 1.0), (t + t) / (1.0 - t), exp(x) - 1.0)


@inline
def elu(x: Any) -> Any:
    return select(less(0.0, x), x, expm1(minimum(0.0, x)))


@inline
def softplus(x: Any) -> Any:
    """max(x, 0) + ln(1 + e), e = exp(-|x|): ln(u) e / (u - 1) corrects for u = 1 + e rounded."""
    e = exp(absolute(x) * -1.0)
    u = e + 1.0
    tail = select(equal(u, 1.0), e, log(u) * (e / (u - 1.0)))
    return maximum(0.0, x) + tail


@inline
def hardsigmoid(x: Any) -> Any:
    return minimum(1.0, maximum(0.0, (x + 3.0) / 6.0))


@inline
def hardswish(x: Any) -> Any:
    return x * minimum(1.0, maximum(0.0, (x + 3.0) / 6.0))


@inline
def trunc(x: Any) -> Any:
    """Towards 0. From 2^23 on every f32 is whole."""
    whole = copy_sign(i32_to_f32(f32_to_i32(x)), x)
    return select(less(absolute(x), 8388608.0), whole, x)


@inline
def floor(x: Any) -> Any:
    whole = trunc(x)
    return select(less(x, whole), whole - 1.0, whole)


@inline
def ceil(x: Any) -> Any:
    whole = trunc(x)
    return copy_sign(select(less(whole, x), whole + 1.0, whole), x)


@inline
def round_half_away(x: Any) -> Any:
    whole = trunc(x)
    away = whole + copy_sign(splat_f32x16(1.0), x)
    return select(less(absolute(x - whole), 0.5), whole, select(is_whole(x), x, away))


@inline
def is_whole(x: Any) -> Any:
    """A mask of numbers too large for a fraction: 2^23 and above, infinity, NaN."""
    return equal(select(less(absolute(x), 8388608.0), splat_f32x16(0.0), 1.0), 1.0)


_FUNCTIONS: dict[str, Intrinsic | Inline] = {
    "sqr": sqr,
    "sqrt": arith.sqrt,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "abs": arith.absolute,
    "sgn": sgn,
    "neg": neg,
    "step": step,
    "tanh": math.tanh,
    "elu": elu,
    "relu": relu,
    "sigmoid": math.sigmoid,
    "gelu": math.gelu,
    "gelu_quick": math.gelu_quick,
    "gelu_erf": math.gelu_erf,
    "silu": math.silu,
    "hardswish": hardswish,
    "hardsigmoid": hardsigmoid,
    "exp": math.exp,
    "expm1": expm1,
    "softplus": softplus,
    "floor": floor,
    "ceil": ceil,
    "round": round_half_away,
    "trunc": trunc,
}

for _op, _function in _FUNCTIONS.items():
    mapped(_op, (), _without_record(_function))


@inline
def scale(p: Record, x: Any) -> Any:
    return fma(x, p.s, splat_f32x16(p.b))


@inline
def clamp(p: Record, x: Any) -> Any:
    return minimum(p.max, maximum(p.min, x))


@inline
def leaky_relu(p: Record, x: Any) -> Any:
    return select(less(0.0, x), x, x * p.negative_slope)


@inline
def xielu(p: Record, x: Any) -> Any:
    below = (expm1(minimum(p.eps, x)) - x) * p.alpha_n
    return fma(x, p.beta, select(less(0.0, x), x * x * p.alpha_p, below))


mapped("scale", ("s", "b"), scale)
mapped("clamp", ("min", "max"), clamp)
mapped("leaky_relu", ("negative_slope",), leaky_relu)
mapped("xielu", ("alpha_n", "alpha_p", "beta", "eps"), xielu)
