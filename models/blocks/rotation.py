"""Rotation of q, k and v, so that quantised K and V lose less: see `ggmlpy.memory.rotation`.

Letters in shapes: D head size, H heads, T tokens, n elements of a block.
"""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor


def rotated(x: Tensor, by: Tensor | None, name: str) -> Tensor:
    """Every n elements of x times a matrix: x [D, H, T] or [D*H, T], by [n, n] -> like x.

    Heads are whole blocks. Without a matrix it is x.
    """
    if by is None:
        return x
    n, (D, H, T, _) = by.ne[0], x.ne
    if not x.contiguous:  # a part of q, k and v in one
        x = ops.cont(x)
    blocks = ops.reshape_2d(x, n, D // n * H * T)
    product = ops.mul_mat(by, blocks).named(f"{name}_blocks")
    return ops.reshape_3d(product, D, H, T).named(name)
