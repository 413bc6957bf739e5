"""Gradients, losses and steps of optimisers: sums of products, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmlpy.conformance.bounds.expected import F64, Array, Magnitude, of_sum, rule, wide
from ggmlpy.graph.op import Op
from ggmlpy.ops.training import (
    CrossEntropyLossBack,
    FlashAttnBack,
    OptStepAdamW,
    RmsNormBack,
    SoftMaxBack,
    Updated,
)

_UNITS = 4  # of an exponential, or a quotient of a few rounded numbers


def _values(op: Op, sources: Sequence[Array]) -> F64:
    values: F64 = wide(op.reference(*sources))
    return values


def _magnitudes(sources: Sequence[Array]) -> list[F64]:
    return [np.abs(wide(source)) for source in sources]


@rule("silu_back")
def silu_back(op: Op, sources: Sequence[Array]) -> Magnitude:
    """grad s (1 + x (1 - s)): the parts of the bracket may cancel."""
    grad, x = _magnitudes(sources)
    s = 1 / (1 + np.exp(-np.minimum(wide(sources[1]), 80)))
    return Magnitude(_values(op, sources), (2 * _UNITS + 2 * x) * grad * s * (1 + x * (1 - s)))


@rule("rms_norm_back")
def rms_norm_back(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, RmsNormBack)
    grad, x = _magnitudes(sources)
    n = x.shape[3]
    squares = (x * x).sum(axis=-1, keepdims=True)
    along = (x * grad).sum(axis=-1, keepdims=True) / (squares + n * op.eps)
    size = (grad + x * along) / np.sqrt(squares / n + op.eps)
    return Magnitude(_values(op, sources), (2 * _UNITS + np.sqrt(n)) * size)


@rule("get_rows_back")
def get_rows_back(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    terms = _values(op, [np.abs(sources[0]), sources[1]])
    return Magnitude(values, of_sum(terms, values, sources[1].size))


@rule("soft_max_back")
def soft_max_back(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, SoftMaxBack)
    grad, y = _magnitudes(sources)
    dot = of_sum((y * grad).sum(axis=-1, keepdims=True), np.zeros(1), y.shape[3])
    return Magnitude(_values(op, sources), abs(op.scale) * y * (_UNITS * grad + dot))


@rule("cross_entropy_loss")
def cross_entropy(op: Op, sources: Sequence[Array]) -> Magnitude:
    """A mean of products with logarithms, each of which is off by units of the largest logit."""
    logits, labels = _magnitudes(sources)
    n = logits.shape[3]
    span = wide(sources[0]).max(axis=-1, keepdims=True) - wide(sources[0])
    products = np.where(labels == 0, 0, labels * (span + np.log(n) + logits))
    terms = products.sum() / (labels.size // n)
    values = _values(op, sources)
    return Magnitude(values, of_sum(np.full_like(values, terms), values, labels.size))


@rule("cross_entropy_loss_back")
def cross_entropy_back(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, CrossEntropyLossBack)
    grad, logits, labels = _magnitudes(sources)
    n = logits.shape[3]
    chances = _values(op, [np.ones_like(sources[0]), sources[1], np.zeros_like(sources[2])])
    finite = np.where(np.isinf(logits), 0, logits)
    units = _UNITS + np.sqrt(n) / 2 + 4 * finite.max(axis=-1, keepdims=True)
    size = grad * (units * chances + _UNITS * labels / (labels.size // n))
    return Magnitude(_values(op, sources), size)


@rule("opt_step_sgd")
def sgd(op: Op, sources: Sequence[Array]) -> Magnitude:
    weights, grad, params = _magnitudes(sources)
    alpha, decay = params.reshape(-1)
    return Magnitude(_values(op, sources), _UNITS * (weights * (1 + alpha * decay) + alpha * grad))


@rule("opt_step_adamw")
def adamw(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, OptStepAdamW)
    x, *tensors, params = _magnitudes(sources)
    alpha, _, _, eps, decay, beta1h, beta2h = params.reshape(-1)
    if op.updated is Updated.WEIGHT:
        m, v = tensors
        step = alpha * m * beta1h / (np.sqrt(v * beta2h) + eps)
        size = x * (1 + alpha * decay) + 2 * step
    else:
        size = x + (tensors[0] if op.updated is Updated.MOMENT else tensors[0] ** 2)
    return Magnitude(_values(op, sources), _UNITS * size)


@rule("flash_attn_back")
def attention_back(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Sums of products with weights that are off by the error of their scores."""
    assert isinstance(op, FlashAttnBack)
    q, k, v, grad = _magnitudes(sources)
    n_query, size_, n_kv = q.shape[2], q.shape[3], k.shape[2]
    scores = float(q.max() * k.max()) * np.sqrt(size_)
    spread = float(grad.max() * v.max()) * size_
    largest = [
        spread * float(k.max()) / np.sqrt(size_),
        spread * float(q.max()) / np.sqrt(size_) * n_query,
        float(grad.max()) * n_query,
    ]
    units = 2 * _UNITS + np.sqrt(n_kv) + 2 * scores
    values = _values(op, sources)
    return Magnitude(values, np.full_like(values, units * max(largest)))
