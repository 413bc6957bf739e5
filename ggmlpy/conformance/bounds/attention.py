"""Softmax, attention and rope: what an error of the argument does to exponentials and angles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmlpy.conformance.bounds.expected import F64, Array, Magnitude, of_sum, rule, wide
from ggmlpy.graph.op import Op
from ggmlpy.ops.attention import FlashAttnExt
from ggmlpy.ops.rope import Rope
from ggmlpy.ops.softmax import SoftMax

_EXP_UNITS = 4


@rule("soft_max")
def softmax(op: Op, sources: Sequence[Array]) -> Magnitude:
    """exp(s - m) over a sum of positive terms: the error of s, which is that of its parts."""
    assert isinstance(op, SoftMax)
    values = wide(op.reference(*sources))
    parts = np.abs(op.scale * wide(sources[0]))
    mask, sinks = op.optional(sources[1:])
    if mask is not None:
        parts = parts + _largest_finite(mask)
    if sinks is not None:
        finite = np.where(np.isfinite(sinks), np.abs(wide(sinks)), 0)  # others have no error
        parts = np.maximum(parts, finite.reshape(-1, 1, 1))
    parts = np.where(values > 0, parts, 0)  # what is masked has no part
    units = _EXP_UNITS + np.sqrt(values.shape[3]) / 4 + 4 * parts.max(axis=-1, keepdims=True)
    return Magnitude(values, units * values)


def _largest_finite(x: Array) -> float:
    return float(np.abs(wide(x)).max(initial=0, where=np.isfinite(x)))


@rule("flash_attn_ext")
def attention(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Weights are wrong by the error of their scores, which are sums of products of q and k."""
    assert isinstance(op, FlashAttnExt)
    q, k, v, *rest = sources
    values = wide(op.reference(*sources))
    spread = wide(op.reference(q, k, np.abs(v), *rest))  # sum of p |v|
    n_cells = k.shape[0] * k.shape[2]
    score = np.abs(op.scale) * _score_size(q, k)[..., None]  # [S, n_q, H, 1]
    if op.has_mask:
        score = score + _largest_finite(rest[0])
    units = _EXP_UNITS + np.sqrt(n_cells) / 2 + 2 * score
    return Magnitude(values, units * spread + 4 * spread)


def _score_size(q: Array, k: Array) -> F64:
    """The size of the largest score of each query and head, [S, n_q, H], over all cells."""
    keys = np.abs(wide(k))
    keys = np.where(np.isfinite(keys), keys, 0)  # cells that are masked may hold anything
    n_shared = q.shape[1] // k.shape[1]
    largest = np.empty((q.shape[0], q.shape[2], q.shape[1]))
    for s, h in np.ndindex(q.shape[:2]):
        streams = keys[:, h // n_shared] if len(k) != len(q) else keys[s : s + 1, h // n_shared]
        terms = np.abs(wide(q[s, h])) @ streams.reshape(-1, k.shape[3]).T
        largest[s, :, h] = of_sum(terms, terms, 1).max(axis=-1)
    return largest


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
