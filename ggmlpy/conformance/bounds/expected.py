"""The exact result of a node, and how far from it each element of a right result may be.

An error has two parts: that of computing in f32, EPS times a magnitude that the op's rule gives,
and that of rounding the result to its type. EPS is the unit of rounding of f32, 2^-24: a correctly
rounded operation is wrong by at most EPS times its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.op import Op
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, TensorType

Array = NDArray[Any]
F64 = NDArray[np.float64]

EPS = 2.0**-24
# Half a unit in the last place, relative, and half the distance of the smallest numbers. A backend
# may flush denormal f32 and bf16 to zero.
_UNITS = {"f32": (2.0**-24, 2.0**-126), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-126)}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a backend must give for a node, in numpy order [ne3, ne2, ne1, ne0].

    values   the exact result; of `exact` results as they are stored
    error    the largest |got - values| of a right result, for each element
    exact    whether every element must equal its value
    rows     which rows [ne3, ne2, ne1] the node writes; None for all
    """

    values: Array
    error: F64
    exact: bool
    rows: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Magnitude:
    """What a rule gives: the exact values, and the size to which EPS is relative."""

    values: F64
    size: F64


Rule = Callable[[Op, Sequence[Array]], Magnitude]

_RULES: dict[str, Rule] = {}  # of ops that round


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of these ops."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in _RULES, f"{name} has two rules"
            _RULES[name] = function
        return function

    return register


def rule_of(node: Tensor) -> Rule:
    """The rule of a node's op."""
    assert node.op is not None
    assert node.op.name in _RULES, f"{node.op.name} has no rule in ggmlpy/conformance/bounds"
    return _RULES[node.op.name]


def has_rule(name: str) -> bool:
    return name in _RULES


def stored_error(values: F64, size: F64, type: TensorType) -> F64:
    """The error of values that were computed in f32 and then stored in a float type.

    A narrower type is a second rounding.
    """
    unit, least = _UNITS[type.name]
    computed = EPS * (np.abs(size) if type is F32 else np.abs(size) + np.abs(values))
    error: F64 = computed + unit * (np.abs(values) + computed) * (1 + 2.0**-20) + least
    return error


def wide(array: Array) -> F64:
    return array.astype(np.float64)


def of_sum(terms: F64, total: F64, n: int) -> F64:
    """The size for a sum of n terms, of which `terms` is the sum of magnitudes.

    In any order, partial sums of terms of one sign grow up to |total|, and each is rounded: as the
    errors have random signs they add up to sqrt(n) / 2 units of it, and to those of a random walk
    where signs differ, which is about the sum of magnitudes. 4 leaves room for the worst element of
    many.
    """
    size: F64 = 4 * (terms + np.sqrt(n) / 4 * np.abs(total))
    return size
