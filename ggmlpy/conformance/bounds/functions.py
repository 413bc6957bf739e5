"""Elementwise ops: a correctly rounded operation, or a function that is good to a few units.

The size of a function is its result times the units that f32 code needs. An exponential whose
argument was rounded is wrong by the argument's error, so its units grow with the argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmlpy.conformance.bounds.expected import EPS, F64, Array, Magnitude, rule, wide
from ggmlpy.graph.op import Op
from ggmlpy.ops import activations
from ggmlpy.ops.elementwise import Scale, repeat_to
from ggmlpy.ops.glu import Glu, SwigluOai
from ggmlpy.ops.shape import Arange
from ggmlpy.ops.unary import LeakyRelu, Xielu

_FLUSHED = 2.0**-126  # the smallest normal f32
_UNITS = 4  # of a function in f32: libraries of vector functions promise 1 to 4
_GELU_SLOPE = 1.6  # 2 sqrt(2 / pi): gelu is x * sigmoid of that times x, near 0


def _values(op: Op, sources: Sequence[Array]) -> F64:
    values: F64 = wide(op.reference(*sources))
    return values


@rule("add", "sub", "mul", "add1", "add_id", "sqr", "sqrt")
def rounded_once(op: Op, sources: Sequence[Array]) -> Magnitude:
    """One operation, which IEEE 754 rounds correctly: the error of storing is all."""
    values = _values(op, sources)
    return Magnitude(values, 0 * values)


@rule("div")
def divided(op: Op, sources: Sequence[Array]) -> Magnitude:
    """As one operation, or as a product with the rounded reciprocal."""
    values = _values(op, sources)
    return Magnitude(values, np.abs(values))


@rule("arange")
def counted(op: Op, sources: Sequence[Array]) -> Magnitude:
    """start + step * i, both of which are rounded to f32, as is their product."""
    assert isinstance(op, Arange)
    values = _values(op, sources)
    return Magnitude(values, abs(op.start) + 2 * np.abs(values - op.start))


@rule("scale")
def scaled(op: Op, sources: Sequence[Array]) -> Magnitude:
    """s * x + b, fused or not; s and b are f32."""
    assert isinstance(op, Scale)
    values = _values(op, sources)
    return Magnitude(values, 2 * np.abs(op.s * wide(sources[0])) + abs(op.b))


@rule("leaky_relu")
def sloped(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, LeakyRelu)
    values = _values(op, sources)
    return Magnitude(values, np.abs(values))


@rule("log", "exp", "expm1", "tanh", "elu", "sigmoid", "softplus")
def function(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A function good to a few units of its result."""
    values = _values(op, sources)
    return Magnitude(values, _UNITS * np.abs(values))


@rule("sin", "cos")
def periodic(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Good to a few units of 1: near its zeros the reduced argument has lost digits."""
    values = _values(op, sources)
    return Magnitude(values, np.full_like(values, _UNITS))


@rule("hardswish", "hardsigmoid")
def piecewise_linear(op: Op, sources: Sequence[Array]) -> Magnitude:
    """(x + 3) / 6, and times x."""
    values, x = _values(op, sources), np.abs(wide(sources[0]))
    slope = x if op.name == "hardswish" else np.ones_like(x)
    return Magnitude(values, 2 * np.abs(values) + np.minimum(x, 3) * slope)


_SLOPES = {"silu": 1.0, "gelu_quick": 1.702, "gelu": _GELU_SLOPE, "gelu_erf": 1.0}


def gate_size(name: str, x: F64, y: F64) -> F64:
    """x times a sigmoid, a tanh or an erf of x: y.

    As 1 + tanh, or 1 + erf, the tail of negative x is known to units of x. By the exponential it is
    known to units of y, times those of the rounded exponent: of gelu a cubic, of erf x^2 / 2. Where
    the exponential is denormal it may be 0.
    """
    exponent = _SLOPES[name] * np.abs(x)
    if name == "gelu":
        exponent = exponent * (1 + activations.GELU_COEF_A * x * x)
    elif name == "gelu_erf":
        exponent = x * x / 2
    size: F64 = np.abs(y) * (_UNITS + 2 * exponent)
    if name in ("gelu", "gelu_erf"):
        size = size + np.abs(x)
    size = size + np.abs(x) * (_FLUSHED / EPS)
    return np.where(np.isfinite(size), size, np.abs(y))


@rule("silu", "gelu", "gelu_quick", "gelu_erf")
def gated_by_itself(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    return Magnitude(values, gate_size(op.name, wide(sources[0]), values))


@rule("xielu")
def xielu(op: Op, sources: Sequence[Array]) -> Magnitude:
    """alpha_n (expm1(x) - x) + beta x, or alpha_p x^2 + beta x."""
    assert isinstance(op, Xielu)
    x = np.abs(wide(sources[0]))
    parts = np.where(wide(sources[0]) > 0, op.alpha_p * x * x, op.alpha_n * (2 * x + abs(op.eps)))
    return Magnitude(_values(op, sources), _UNITS * (np.abs(parts) + abs(op.beta) * x))


_GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_erf": "gelu_erf", "geglu_quick": "gelu_quick"}


@rule("reglu", "swiglu", "geglu", "geglu_erf", "geglu_quick", "swiglu_oai", "swiglu_clamp")
def gated(op: Op, sources: Sequence[Array]) -> Magnitude:
    """act(gate) * up: the error of the activation, times up, and one more rounding."""
    assert isinstance(op, Glu)
    values = _values(op, sources)
    gate, up = halves(op, sources)
    if isinstance(op, SwigluOai):
        gate, up = np.minimum(gate, op.limit), np.abs(up) + 1
    if op.name in _GATES:
        name = _GATES[op.name]
        of_gate = gate_size(name, gate, getattr(activations, name)(gate))
        return Magnitude(values, np.abs(up) * of_gate + np.abs(values))
    if op.name == "reglu":
        return Magnitude(values, np.abs(values))
    slope = abs(getattr(op, "alpha", 1.0))
    units = 2 * _UNITS + 2 * slope * np.abs(gate)
    return Magnitude(values, units * np.abs(gate * activations.sigmoid(slope * gate) * up))


def halves(op: Glu, sources: Sequence[Array]) -> tuple[F64, F64]:
    """Gate and up of a gated unit."""
    if len(sources) == 2:
        return wide(sources[0]), repeat_to(wide(sources[1]), sources[0])
    first, second = np.split(wide(sources[0]), 2, axis=-1)
    return (second, first) if op.swapped else (first, second)
