"""Softmax over rows with scale, mask, ALiBi and sinks; and the causal mask by itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.count import has_counts
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32

T = TypeVar("T")


def alibi_slopes(n_head: int, max_bias: float) -> Array:
    """The factor of each head's mask, [n_head] (Press et al., 2021); ones where max_bias is 0.

    With n2 the largest power of two not above n_head: 2^(-max_bias (h + 1) / n2) for h below n2,
    then 2^(-max_bias (2 (h - n2) + 1) / (2 n2)).
    """
    if max_bias <= 0:
        return np.ones(n_head)
    n2 = 2 ** math.floor(math.log2(n_head))
    h = np.arange(n_head)
    exponent = np.where(h < n2, (h + 1) / n2, (2 * (h - n2) + 1) / (2 * n2))
    slopes: Array = np.exp2(-max_bias * exponent)
    return slopes


class MaskedScores(Op):
    """The base of ops that take an optional mask and optional sinks after their other sources."""

    __slots__ = ()

    max_bias: float
    has_mask: bool
    has_sinks: bool

    def optional(self, given: Sequence[T]) -> tuple[T | None, T | None]:
        """(mask, sinks) out of the sources that are there."""
        rest = list(given)
        mask = rest.pop(0) if self.has_mask else None
        sinks = rest.pop(0) if self.has_sinks else None
        assert not rest, f"{self.name} has {len(rest)} sources too many"
        return mask, sinks

    def optional_names(self) -> tuple[str, ...]:
        return ("mask",) * self.has_mask + ("sinks",) * self.has_sinks

    def check_bias(self) -> None:
        require(
            self.max_bias >= 0 and (self.max_bias == 0 or self.has_mask),
            f"max_bias is {self.max_bias:g}: it must be 0, or above 0 with a mask",
        )


def check_mask(mask: Spec, n_kv: int, n_query: int, n_head: int, n_seq: int) -> None:
    require(mask.contiguous, "mask must be contiguous")
    require(mask.ne[0] == n_kv, f"dimension 0 of mask must be {n_kv}, one for each key")
    require(mask.ne[1] >= n_query, f"dimension 1 of mask must be at least {n_query}, the queries")
    require(
        n_head % mask.ne[2] == 0 and n_seq % mask.ne[3] == 0,
        f"dimensions 2 and 3 of mask must divide {n_head} and {n_seq}",
    )


def check_sinks(sinks: Spec, n_head: int) -> None:
    require(
        sinks.type is F32 and sinks.ne == (n_head, 1, 1, 1) and sinks.contiguous,
        f"sinks must be f32 [{n_head}]: one for each head",
    )


def set_sinks(out: Tensor, sinks: Tensor | None, kind: type[MaskedScores]) -> Tensor:
    """Set the sinks of the node `out`, in place as in ggml, and return it."""
    require(
        isinstance(out.op, kind),
        f"{kind.name}: sinks are for a result of {kind.name}, this is {out!r}",
    )
    assert isinstance(out.op, kind)
    if sinks is None:
        return out
    require(not out.op.has_sinks, f"{kind.name}: {out!r} has its sinks already")
    assert dataclasses.is_dataclass(out.op)
    changed = dataclasses.replace(out.op, has_sinks=True).node(*out.src, sinks)
    out.op, out.src = changed.op, changed.src
    return out


@op("soft_max")
@dataclass(frozen=True, slots=True)
class SoftMax(MaskedScores):
    """Each row as weights that sum to 1.

        s[j] = scale * x[j] + slope(h) * mask[j, q, h % Hm, s % Sm]
        y[j] = exp(s[j] - m) / (sum_j exp(s[j] - m) + exp(sink(h) - m)),   m = max of s and sink

    x [n_kv, n_q, H, S] f32 with contiguous rows, mask [n_kv, >= n_q, Hm, Sm] f16 or f32 contiguous,
    sinks [H] f32; the sink takes part in the sum and has no weight of its own  ->  y of x's shape.
    slope(h) is 1, or ALiBi's where max_bias is above 0, see alibi_slopes.

    A masked entry (mask -inf) has weight 0, even if x is NaN there; a row without an entry above
    -inf gives 0 everywhere (ggml gives NaN). Raises ShapeError for other shapes and types.
    """

    in_place = True

    scale: float = 1.0
    max_bias: float = 0.0
    has_mask: bool = False
    has_sinks: bool = False

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        return ("x", *self.optional_names())[:n_srcs]

    def infer(self, x: Spec, *given: Spec) -> Spec:
        mask, sinks = self.optional(given)
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        n_kv, n_query, n_head, n_seq = x.ne
        if mask is not None:
            require(mask.type in (F16, F32), "mask must be f16 or f32")
            check_mask(mask, n_kv, n_query, n_head, n_seq)
        if sinks is not None:
            check_sinks(sinks, n_head)
        self.check_bias()
        require(
            self.max_bias == 0 or not has_counts((n_head,)),
            f"there are {n_head} heads: with max_bias their number must be fixed",
        )
        return Spec(x.ne, F32)

    def reference(self, x: Array, *given: Array) -> Array:
        mask, sinks = self.optional(given)
        scores = x.astype(np.float64) * self.scale
        if mask is not None:
            bias = self.bias(mask, x.shape)
            scores = np.where(np.isneginf(bias), -np.inf, scores + bias)
        sink = -np.inf if sinks is None else sinks.reshape(-1, 1, 1).astype(np.float64)
        largest = np.maximum(scores.max(axis=-1, keepdims=True), sink)
        largest = np.where(np.isneginf(largest), 0, largest)  # else -inf - -inf is NaN
        weights = np.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - largest)
        return weights / np.where(total == 0, 1, total)

    def bias(self, mask: Array, shape: tuple[int, ...]) -> Array:
        """What the mask adds to scores of that shape: [S, H, n_q, n_kv], in numpy order."""
        n_seq, n_head, n_query, _ = shape
        cut = mask[:, :, :n_query].astype(np.float64)
        cut = np.tile(cut, (n_seq // mask.shape[0], n_head // mask.shape[1], 1, 1))
        biases: Array = alibi_slopes(n_head, self.max_bias)[:, None, None] * cut
        return biases


class DiagMask(Op):
    """The base of causal masks that are written into the scores.

    y[j, q] = a constant where j > n_past + q, else x[j, q]          x [n, n_q, ...] f32 -> y like x
    """

    __slots__ = ()

    in_place = True

    n_past: int
    masked: ClassVar[float]

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32, "x must be f32")
        require(self.n_past >= 0, f"n_past is {self.n_past}: it must not be below 0")
        return Spec(x.ne, F32)

    def reference(self, x: Array) -> Array:
        column = np.arange(x.shape[3])
        query = np.arange(x.shape[2])[:, None]
        return np.where(column > self.n_past + query, self.masked, x)


@op("diag_mask_inf")
@dataclass(frozen=True, slots=True)
class DiagMaskInf(DiagMask):
    """What is masked is -inf; see DiagMask."""

    n_past: int
    masked = -np.inf


@op("diag_mask_zero")
@dataclass(frozen=True, slots=True)
class DiagMaskZero(DiagMask):
    """What is masked is 0; see DiagMask."""

    n_past: int
    masked = 0.0


@checked
def soft_max(a: Tensor) -> Tensor:
    """`ggml_soft_max`; see SoftMax."""
    return SoftMax().node(a)


@checked
def soft_max_ext(a: Tensor, mask: Tensor | None, scale: float, max_bias: float) -> Tensor:
    """`ggml_soft_max_ext`; see SoftMax."""
    made = SoftMax(scale, max_bias, has_mask=mask is not None)
    return made.node(a) if mask is None else made.node(a, mask)


@checked
def soft_max_add_sinks(a: Tensor, sinks: Tensor | None) -> Tensor:
    """`ggml_soft_max_add_sinks`: sets the sinks of `a`, a result of soft_max_ext; returns `a`."""
    return set_sinks(a, sinks, SoftMax)


@checked
def diag_mask_inf(a: Tensor, n_past: int) -> Tensor:
    """`ggml_diag_mask_inf`; see DiagMaskInf."""
    return DiagMaskInf(n_past).node(a)


@checked
def diag_mask_zero(a: Tensor, n_past: int) -> Tensor:
    """`ggml_diag_mask_zero`; see DiagMaskZero."""
    return DiagMaskZero(n_past).node(a)
