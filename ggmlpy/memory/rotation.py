"""Rotation of K and V before they are stored in a quantised type, and back after attention.

The elements of a block of a quantised type share a scale, so one large element costs all others
their precision, and keys have such channels. A Hadamard matrix spreads every element over all of a
block: what is stored has no large ones. The matrix H is symmetric and orthogonal. With q H and k H
in place of q and k the products q k^T are the same; V is stored as v H, and the result of attention
times H is that of v. Source: QuaRot (Ashkboos et al., 2024), with llama.cpp's sizes of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import Unsupported
from ggmlpy.graph.types import TensorType
from ggmlpy.models.memory import AttentionLayers, KVSizes

_LEAST = 64  # elements of a block, below which llama.cpp does not rotate
_LEAST_ASKED = 32  # those that share a scale in all types of K and V


@dataclass(frozen=True, slots=True)
class Rotation:
    """Elements of the blocks in which heads of K and V are rotated; 0: not at all."""

    k: int = 0
    v: int = 0

    def __bool__(self) -> bool:
        return bool(self.k or self.v)


NO_ROTATION = Rotation()


def rotation_of(
    size: KVSizes, type_k: TensorType, type_v: TensorType, kv_rotation: bool | None
) -> Rotation:
    """How K and V of a layer are rotated before they are stored.

    `kv_rotation` False: not at all. None: where the type is quantised and the size of a head is a
    multiple of 64. True: where it is a multiple of 32. Blocks have the largest power of two that
    divides the size, those of V at most 64 elements. A latent cache, whose V is a part of K, is
    never rotated.
    """
    if kv_rotation is False or not size.n_embd_head_v:
        return NO_ROTATION
    least = _LEAST_ASKED if kv_rotation else _LEAST
    k = _power_of_two_in(size.n_embd_head_k) if type_k.is_quantized else 0
    v = _power_of_two_in(size.n_embd_head_v) if type_v.is_quantized else 0
    return Rotation(k if k >= least else 0, min(v, _LEAST) if v >= least else 0)


def check_rotation(
    parts: Iterable[AttentionLayers],
    type_k: TensorType,
    type_v: TensorType,
    kv_rotation: bool | None,
) -> None:
    """Raise Unsupported where a rotation is asked for that no layer can have."""
    if not kv_rotation:
        return
    if not (type_k.is_quantized or type_v.is_quantized):
        raise Unsupported(
            f"kv_rotation is True, but K is {type_k} and V is {type_v}: only what is stored in a"
            " quantised type is rotated"
        )
    sizes = [size for part in parts for size in part.layers.values()]
    if not any(rotation_of(size, type_k, type_v, kv_rotation) for size in sizes):
        found = sorted({(size.n_embd_head_k, size.n_embd_head_v) for size in sizes})
        heads = ", ".join(f"K {k} and V {v or 'a part of K'}" for k, v in found if k) or "none"
        raise Unsupported(
            f"kv_rotation is True, but the model's heads are {heads}: the size must be a multiple"
            f" of {_LEAST_ASKED}, with a V of its own"
        )


def hadamard(n: int) -> NDArray[np.float32]:
    """The Hadamard matrix of a power of two in Sylvester's order, times 1 / sqrt(n): [n, n]."""
    assert n > 0 and n & (n - 1) == 0
    signs = np.ones((1, 1), np.float32)
    while len(signs) < n:
        signs = np.block([[signs, signs], [signs, -signs]])
    matrix: NDArray[np.float32] = signs * np.float32(1.0 / np.sqrt(n))
    return matrix


def rotate_rows(values: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """Rotate every n elements of rows [rows, elements], or rotate them back; as they are if n is 0.

    The product is one of float64, rounded once.
    """
    if not n:
        return values
    matrix = np.sign(hadamard(n)).astype(np.float64) / np.sqrt(n)
    blocks = values.reshape(-1, n).astype(np.float64) @ matrix
    rotated: NDArray[np.float32] = blocks.astype(np.float32).reshape(values.shape)
    return rotated


def _power_of_two_in(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n
