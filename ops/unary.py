"""The unary family: one op for each function, from one table.

Each maps x f32, f16 or bf16 element by element to y like x, see Mapped. The op has the name of the
function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.ops import activations
from ggmlpy.ops.elementwise import Mapped

ArrayFunction = Callable[[Array], Array]


class Unary(Mapped):
    """The base of the family: y = function(x). x must have contiguous rows."""

    __slots__ = ()

    function: ClassVar[ArrayFunction]

    def infer(self, x: Spec) -> Spec:
        require(x.rows_contiguous, "x must have contiguous rows")
        return Mapped.infer(self, x)

    def map(self, x: Array) -> Array:
        return type(self).function(x)


def _unary(name: str, formula: str, function: ArrayFunction) -> Callable[[Tensor], Tensor]:
    """Register an op and return the function that makes its nodes."""
    members = {
        "__slots__": (),
        "__doc__": f"y = {formula}; see Unary.",
        "__module__": __name__,
        "function": staticmethod(function),
    }
    made = type(name.title().replace("_", ""), (Unary,), members)
    cls: type[Unary] = op(name)(dataclass(frozen=True)(made))

    def build(a: Tensor) -> Tensor:
        return cls().node(a)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"`ggml_{name}`: {formula}; see Unary."
    return checked(build)


def _doc(function: ArrayFunction) -> str:
    return function.__doc__ or ""


abs = _unary("abs", "|x|", np.abs)
sgn = _unary("sgn", "-1, 0 or 1 by the sign of x", np.sign)
neg = _unary("neg", "-x", np.negative)
step = _unary("step", _doc(activations.step), activations.step)
tanh = _unary("tanh", "tanh(x)", np.tanh)
elu = _unary("elu", _doc(activations.elu), activations.elu)
relu = _unary("relu", _doc(activations.relu), activations.relu)
sigmoid = _unary("sigmoid", _doc(activations.sigmoid), activations.sigmoid)
gelu = _unary("gelu", _doc(activations.gelu), activations.gelu)
gelu_quick = _unary("gelu_quick", _doc(activations.gelu_quick), activations.gelu_quick)
gelu_erf = _unary("gelu_erf", _doc(activations.gelu_erf), activations.gelu_erf)
silu = _unary("silu", _doc(activations.silu), activations.silu)
hardswish = _unary("hardswish", _doc(activations.hardswish), activations.hardswish)
hardsigmoid = _unary("hardsigmoid", _doc(activations.hardsigmoid), activations.hardsigmoid)
exp = _unary("exp", "exp(x)", np.exp)
expm1 = _unary("expm1", "exp(x) - 1, exact near 0", np.expm1)
softplus = _unary("softplus", _doc(activations.softplus), activations.softplus)
floor = _unary("floor", "the largest whole number not above x", np.floor)
ceil = _unary("ceil", "the smallest whole number not below x", np.ceil)
round = _unary("round", _doc(activations.round_half_away), activations.round_half_away)
trunc = _unary("trunc", "x without its fraction", np.trunc)


@op("leaky_relu")
@dataclass(frozen=True, slots=True)
class LeakyRelu(Mapped):
    """y = x above 0, else negative_slope * x; see Mapped."""

    negative_slope: float

    def map(self, x: Array) -> Array:
        return np.where(x > 0, x, self.negative_slope * x)


@op("xielu")
@dataclass(frozen=True, slots=True)
class Xielu(Mapped):
    """The expanded integral of ELU, with the parameters that `xielu` computes; see Mapped.

        y = alpha_p * x^2 + beta * x                                   above 0
        y = alpha_n * (exp(min(x, eps)) - 1 - x) + beta * x            else

    Source: Huang & Schlag, 2024.
    """

    alpha_n: float
    alpha_p: float
    beta: float
    eps: float

    def map(self, x: Array) -> Array:
        above = self.alpha_p * x * x
        below = self.alpha_n * (np.expm1(np.minimum(x, self.eps)) - x)
        return np.where(x > 0, above, below) + self.beta * x


@checked
def leaky_relu(a: Tensor, negative_slope: float) -> Tensor:
    """`ggml_leaky_relu`; see LeakyRelu."""
    return LeakyRelu(negative_slope).node(a)


@checked
def xielu(a: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Tensor:
    """`ggml_xielu`, with the alphas as trained; see Xielu.

    The op gets softplus(alpha_p), and beta + softplus(alpha_n), as in ggml.
    """
    with np.errstate(invalid="ignore"):  # NaN gives NaN
        ready_n, ready_p = (float(np.logaddexp(0, alpha)) for alpha in (alpha_n, alpha_p))
    return Xielu(beta + ready_n, ready_p, beta, eps).node(a)
