"""Softmax, attention and rope: what an error of the argument does to exponentials and angles."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ggmlpy.conformance.bounds.expected import F64, Array, Magnitude, of_sum, rule, wide
from ggmlpy.graph.op import Op
from ggmlpy.ops.attention import FlashAttnExt
from ggmlpy.ops.rope import Rope
from ggmlpy.ops.softmax import SoftMax

_EXP_UNITS = 4
_SLOPE_UNITS = 4  # ALiBi's slope is a power


@rule("soft_max")
def softmax(op: Op, sources: Sequence[Array]) -> Magnitude:
    """exp(s - m) over a sum of positive terms: the error of s, which is that of its parts."""
    assert isinstance(op, SoftMax)
    values = wide(op.reference(*sources))
    mask, sinks = op.optional(sources[1:])
    scaled = op.scale * wide(sources[0])
    bias = np.zeros_like(scaled) if mask is None else op.bias(mask, scaled.shape)
    largest = np.where(values > 0, scaled + bias, -np.inf).max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, wide(sinks).reshape(-1, 1, 1))
    units = np.where(values > 0, np.abs(scaled) + _exponent_units(scaled + bias, bias, largest), 0)
    size = values * (units + _of_normaliser(values, units))
    return Magnitude(values, size)


def _exponent_units(score: F64, bias: F64, largest: F64) -> F64:
    """Units of exp(score - largest) besides those of the score without its bias.

    The rounded product of slope and mask, its sum with the rest, the difference to the largest,
    which the exponential scales by log2(e) before it takes it apart; and its own.
    """
    units: F64 = (
        _EXP_UNITS + (1 + _SLOPE_UNITS) * np.abs(bias) + np.abs(score) + 2 * np.abs(score - largest)
    )
    return units


def _of_normaliser(weights: F64, units: F64) -> F64:
    """Units of the sum of weights, of which `weights` are the shares.

    Errors of single weights have random signs, but for those that the exponential always makes.
    """
    n = weights.shape[-1]
    of_weights = np.sqrt((weights * weights * units * units).sum(axis=-1, keepdims=True))
    found: F64 = _EXP_UNITS + np.sqrt(n) / 4 + of_weights
    return found


class _AttentionSize(FlashAttnExt):
    """Attention that gives the size of each result's error instead of the result."""

    rounding_units: ClassVar[float] = 0  # of weights, where they are rounded before they meet v

    def attend(self, query: F64, keys: F64, values: F64, bias: F64, sink: float) -> F64:
        """A weight that is wrong by e units moves the result by e p (v - y).

        The normaliser's error is the same for all, those of single weights have random signs.
        """
        dots = self.scale * (keys @ query)
        of_dots = abs(self.scale) * (np.abs(keys) @ np.abs(query))
        units = of_sum(of_dots, dots, keys.shape[1])
        if self.logit_softcap != 0:
            dots = self.logit_softcap * np.tanh(dots / self.logit_softcap)
            units = units + _EXP_UNITS * np.abs(dots)
        scores = dots + bias
        largest = np.maximum(scores.max(initial=-np.inf), sink)
        if np.isneginf(largest):
            return np.zeros(values.shape[1])
        units = units + _exponent_units(scores, bias, largest) + self.rounding_units
        weights = np.exp(scores - largest)
        weights = weights / (weights.sum() + np.exp(sink - largest))
        y = weights @ values
        of_weights = self.of_weights(weights * units, np.abs(values - y), scores)
        spread = weights @ np.abs(values)
        size: F64 = 2 * np.sqrt(of_weights) + of_sum(spread, y, len(keys))
        size += _of_normaliser(weights, 0 * weights) * np.abs(y)
        return size

    def of_weights(self, errors: F64, distances: F64, scores: F64) -> F64:
        """The squared error of the result by the errors of single weights."""
        squares: F64 = errors**2 @ distances**2
        return squares


class _HalfAttentionSize(_AttentionSize):
    """The same where weights are rounded to f16, also those that the normaliser sums.

    Each is wrong by up to 2^-11 of itself, by 0.42 of that in the mean square: this is 7 times the
    standard deviation of the sum of their errors.
    """

    rounding_units = 1.5 * 2.0**13

    def of_weights(self, errors: F64, distances: F64, scores: F64) -> F64:
        """Equal weights, as of a cell that is listed twice, are rounded alike."""
        distinct, which = np.unique(scores, return_inverse=True)
        if len(distinct) == len(scores):
            return super().of_weights(errors, distances, scores)
        sums = np.zeros((len(distinct), distances.shape[1]))
        np.add.at(sums, which, errors[:, None] * distances)
        squares: F64 = (sums**2).sum(axis=0)
        return squares


@rule("flash_attn_ext")
def attention(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Weights are wrong by the error of their scores, which are sums of products of q and k."""
    return _sized(op, sources, _AttentionSize)


def half_attention(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Attention of a backend that takes q, k, v and weights as f16, q and weights with 11
    significant bits: a power of two may be taken out of a row, so that none is too small. The
    oracle rounds q, k and v."""
    q, k, v, *others = sources
    mantissa, exponent = np.frexp(wide(q))
    rounded = np.ldexp(np.rint(mantissa * 2.0**11), exponent - 11)
    halves = [np.where(np.isfinite(q), rounded, q), k.astype(np.float16), v.astype(np.float16)]
    return _sized(op, [*halves, *others], _HalfAttentionSize)


def _sized(op: Op, sources: Sequence[Array], size: type[_AttentionSize]) -> Magnitude:
    assert isinstance(op, FlashAttnExt)
    values = wide(op.reference(*sources))
    fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    return Magnitude(values, wide(size(**fields).reference(*sources)))


@rule("rope", "rope_back")
def rotation(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A pair of length r, rotated by an angle that f32 holds to units of itself: units of r."""
    assert isinstance(op, Rope)
    values = wide(op.reference(*sources))
    angles, scale = op.angles(sources[1], sources[2] if len(sources) > 2 else None)
    units = abs(scale) * (6 + 4 * np.abs(angles))[None, :, None, :]  # [1, T, 1, pairs]
    first, second = op.pairs()
    x = np.abs(wide(sources[0]))
    size = np.zeros_like(values)
    size[..., first] = size[..., second] = units * (x[..., first] + x[..., second])
    return Magnitude(values, size)
