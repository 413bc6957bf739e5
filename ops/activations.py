"""The activation functions, on float64 arrays: shared by the unary and the gated ops."""

from __future__ import annotations

import math

import numpy as np

from ggmlpy.graph.op import Array

GELU_COEF_A = 0.044715  # Hendrycks & Gimpel, 2016: the tanh approximation
GELU_QUICK_COEF = 1.702  # the same paper's sigmoid approximation

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))"""
    small = np.exp(-np.abs(x))  # at most 1, so that no x overflows
    above: Array = 1 / (1 + small)
    return np.where(x >= 0, above, small * above)


def silu(x: Array) -> Array:
    """x * sigmoid(x)"""
    return x * sigmoid(x)


def relu(x: Array) -> Array:
    """max(x, 0)"""
    return np.maximum(x, 0)


def elu(x: Array) -> Array:
    """x above 0, else exp(x) - 1"""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def gelu(x: Array) -> Array:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x^2)))"""
    inner: Array = math.sqrt(2 / math.pi) * x * (1 + GELU_COEF_A * x * x)
    cdf: Array = 0.5 * (1 + np.tanh(inner))
    return x * cdf


def gelu_quick(x: Array) -> Array:
    """x * sigmoid(1.702 * x)"""
    return x * sigmoid(GELU_QUICK_COEF * x)


def gelu_erf(x: Array) -> Array:
    """0.5 * x * (1 + erf(x / sqrt(2)))"""
    cdf: Array = 0.5 * _erfc(-x / math.sqrt(2))  # 1 + erf would lose the tail
    return x * cdf


def hardsigmoid(x: Array) -> Array:
    """(x + 3) / 6, held between 0 and 1"""
    return np.clip((x + 3) / 6, 0, 1)


def hardswish(x: Array) -> Array:
    """x * hardsigmoid(x)"""
    return x * hardsigmoid(x)


def softplus(x: Array) -> Array:
    """ln(1 + exp(x))"""
    return np.logaddexp(0, x)


def step(x: Array) -> Array:
    """1 above 0, else 0"""
    return np.where(x > 0, 1.0, 0.0)


def round_half_away(x: Array) -> Array:
    """the nearest whole number, halves away from 0"""
    return np.copysign(np.floor(np.abs(x) + 0.5), x)
