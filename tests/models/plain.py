"""Parts of forward passes in plain numpy, in float64, for the tensors and keys of a file.

Letters in shapes, which are numpy's: T tokens, H heads, Hk K/V heads, D head size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggmlpy.gguf import GGUFFile

F64 = NDArray[np.float64]


def tensors_of(path: Path) -> dict[str, F64]:
    """The tensors of a file of f32, matrices as [n_out, n_in]."""
    return {
        name: t.data.view(np.float32).reshape(t.ne[t.n_dims - 1 :: -1]).astype(np.float64)
        for name, t in GGUFFile.open(path).tensors.items()
    }


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    """Of each row."""
    y: F64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return y


def layer_norm(x: F64, weight: F64, eps: float) -> F64:
    """Of each row, without a bias."""
    return rms_norm(x - x.mean(-1, keepdims=True), weight, eps)


def sigmoid(x: F64) -> F64:
    """1 / (1 + exp(-x))"""
    y: F64 = 1 / (1 + np.exp(-x))
    return y


def rotated(x: F64, n_dims: int, *, neox: bool, base: float = 10_000.0) -> F64:
    """x [T, H, D], of whose heads the first n_dims elements are rotated by the position: the
    pairs (i, i + n_dims / 2) of `neox`, else (2i, 2i + 1)."""
    half = n_dims // 2
    theta = np.arange(len(x))[:, None] * base ** (-2.0 * np.arange(half) / n_dims)  # [T, half]
    first = slice(0, half) if neox else slice(0, n_dims, 2)
    second = slice(half, n_dims) if neox else slice(1, n_dims, 2)
    pairs = (x[..., first] + 1j * x[..., second]) * np.exp(1j * theta)[:, None]
    y = x.copy()
    y[..., first], y[..., second] = pairs.real, pairs.imag
    return y


def attention(q: F64, k: F64, v: F64, scale: float, window: int = 0) -> F64:
    """q [T, H, D], k and v [T, Hk, D] -> [T, H * D]: causal; each token sees the last `window`
    ones, itself included, or with 0 all."""
    apart = np.arange(len(q))[:, None] - np.arange(len(q))
    hidden = (apart < 0) | (apart >= (window or len(q)))
    k, v = (np.repeat(part, q.shape[1] // k.shape[1], axis=1) for part in (k, v))
    scores = np.where(hidden, -np.inf, np.einsum("qhd,khd->hqk", q, k) * scale)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out: F64 = np.einsum("hqk,khd->qhd", p, v).reshape(len(q), -1)
    return out
