"""What launchers ask of tensors: contiguous rows, and grids over elements."""

from __future__ import annotations

from ggmlpy.backends.cuda.driver import Grid
from ggmlpy.graph.tensor import Tensor


def rows_ok(tensor: Tensor) -> bool:
    """Whether the elements of each row are contiguous."""
    return tensor.rows_contiguous or tensor.ne[0] == 1


def blocks(n: int, per_block: int) -> int:
    """Blocks for `n` of something, of which a run may use fewer: by its bound."""
    return max(1, -(-int(n) // per_block))


def over_elements(tensor: Tensor, threads: int) -> Grid:
    """A thread for each element."""
    return blocks(tensor.spec.n_elements, threads), 1, 1
