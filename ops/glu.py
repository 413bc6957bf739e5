"""Gated linear units: an activation of one half, times the other half.

    one input    x [2n, ...] f32 or f16  ->  y [n, ...]      gate = first half, up = second half
    _swapped     the same with gate = second half, up = first half
    _split       gate a [n, ...] and up b [n, ...], same shape and type

        y = act(gate) * up

Rows must be contiguous. Source: Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32
from ggmlpy.ops import activations


@dataclass(frozen=True, slots=True)
class Glu(Op):
    """The base of gated linear units; the module's docstring describes the forms.

    Sources: a alone (both halves), or a (gate) and b (up). Raises ShapeError unless a and b are of
    one shape and type, f32 or f16, with contiguous rows, and a single a has an even number of
    columns.
    """

    in_place = True

    swapped: bool = False

    def infer(self, a: Spec, b: Spec | None = None) -> Spec:
        require(a.type in (F32, F16), "a must be f32 or f16")
        require(a.rows_contiguous, "a must have contiguous rows")
        if b is None:
            require(a.ne[0] % 2 == 0, f"a's rows must split in halves, they have {a.ne[0]} columns")
            return Spec((a.ne[0] // 2, *a.ne[1:]), a.type)
        require(not self.swapped, "swapped is for one input: give a and b in the other order")
        require(a.ne == b.ne and a.type is b.type, "a and b must have the same shape and type")
        require(b.rows_contiguous, "b must have contiguous rows")
        return Spec(a.ne, a.type)

    def reference(self, a: Array, b: Array | None = None) -> Array:
        if b is not None:
            return self.gated(a.astype(np.float64), b.astype(np.float64))
        first, second = np.split(a.astype(np.float64), 2, axis=-1)
        return self.gated(second, first) if self.swapped else self.gated(first, second)

    @abstractmethod
    def gated(self, gate: Array, up: Array) -> Array:
        """act(gate) * up, on float64 arrays."""


@op("reglu")
@dataclass(frozen=True, slots=True)
class Reglu(Glu):
    """y = relu(gate) * up; see Glu."""

    def gated(self, gate: Array, up: Array) -> Array:
        return activations.relu(gate) * up


@op("geglu")
@dataclass(frozen=True, slots=True)
class Geglu(Glu):
    """y = gelu(gate) * up, by tanh; see Glu."""

    def gated(self, gate: Array, up: Array) -> Array:
        return activations.gelu(gate) * up


@op("swiglu")
@dataclass(frozen=True, slots=True)
class Swiglu(Glu):
    """y = silu(gate) * up; see Glu."""

    def gated(self, gate: Array, up: Array) -> Array:
        return activations.silu(gate) * up


@op("geglu_erf")
@dataclass(frozen=True, slots=True)
class GegluErf(Glu):
    """y = gelu_erf(gate) * up; see Glu."""

    def gated(self, gate: Array, up: Array) -> Array:
        return activations.gelu_erf(gate) * up


@op("geglu_quick")
@dataclass(frozen=True, slots=True)
class GegluQuick(Glu):
    """y = gelu_quick(gate) * up; see Glu."""

    def gated(self, gate: Array, up: Array) -> Array:
        return activations.gelu_quick(gate) * up


@op("swiglu_oai")
@dataclass(frozen=True, slots=True)
class SwigluOai(Glu):
    """The gate of gpt-oss, clamped, with its own slope; see Glu.

    g = min(gate, limit), u = clamp(up, -limit, limit)
    y = g * sigmoid(alpha * g) * (u + 1)
    """

    alpha: float = 1.0
    limit: float = float("inf")

    def gated(self, gate: Array, up: Array) -> Array:
        g = np.minimum(gate, self.limit)
        u = np.clip(up, -self.limit, self.limit)
        gated: Array = g * activations.sigmoid(self.alpha * g) * (u + 1)
        return gated


@op("swiglu_clamp")
@dataclass(frozen=True, slots=True)
class SwigluClamp(Glu):
    """y = silu(min(gate, limit)) * clamp(up, -limit, limit); see Glu."""

    limit: float = float("inf")

    def gated(self, gate: Array, up: Array) -> Array:
        clamped = np.clip(up, -self.limit, self.limit)
        gated: Array = activations.silu(np.minimum(gate, self.limit)) * clamped
        return gated


@checked
def reglu(a: Tensor) -> Tensor:
    """`ggml_reglu`; see Reglu."""
    return Reglu().node(a)


@checked
def reglu_swapped(a: Tensor) -> Tensor:
    """`ggml_reglu_swapped`; see Reglu."""
    return Reglu(swapped=True).node(a)


@checked
def reglu_split(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_reglu_split`; see Reglu."""
    return Reglu().node(a, b)


@checked
def geglu(a: Tensor) -> Tensor:
    """`ggml_geglu`; see Geglu."""
    return Geglu().node(a)


@checked
def geglu_swapped(a: Tensor) -> Tensor:
    """`ggml_geglu_swapped`; see Geglu."""
    return Geglu(swapped=True).node(a)


@checked
def geglu_split(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_geglu_split`; see Geglu."""
    return Geglu().node(a, b)


@checked
def swiglu(a: Tensor) -> Tensor:
    """`ggml_swiglu`; see Swiglu."""
    return Swiglu().node(a)


@checked
def swiglu_swapped(a: Tensor) -> Tensor:
    """`ggml_swiglu_swapped`; see Swiglu."""
    return Swiglu(swapped=True).node(a)


@checked
def swiglu_split(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_swiglu_split`; see Swiglu."""
    return Swiglu().node(a, b)


@checked
def geglu_erf(a: Tensor) -> Tensor:
    """`ggml_geglu_erf`; see GegluErf."""
    return GegluErf().node(a)


@checked
def geglu_erf_swapped(a: Tensor) -> Tensor:
    """`ggml_geglu_erf_swapped`; see GegluErf."""
    return GegluErf(swapped=True).node(a)


@checked
def geglu_erf_split(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_geglu_erf_split`; see GegluErf."""
    return GegluErf().node(a, b)


@checked
def geglu_quick(a: Tensor) -> Tensor:
    """`ggml_geglu_quick`; see GegluQuick."""
    return GegluQuick().node(a)


@checked
def geglu_quick_swapped(a: Tensor) -> Tensor:
    """`ggml_geglu_quick_swapped`; see GegluQuick."""
    return GegluQuick(swapped=True).node(a)


@checked
def geglu_quick_split(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_geglu_quick_split`; see GegluQuick."""
    return GegluQuick().node(a, b)


@checked
def swiglu_oai(a: Tensor, b: Tensor, alpha: float, limit: float) -> Tensor:
    """`ggml_swiglu_oai`; see SwigluOai."""
    return SwigluOai(alpha=alpha, limit=limit).node(a, b)


@checked
def swiglu_clamp(a: Tensor, b: Tensor, limit: float) -> Tensor:
    """`ggml_swiglu_clamp`; see SwigluClamp."""
    return SwigluClamp(limit=limit).node(a, b)
