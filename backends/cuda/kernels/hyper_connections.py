"""Hyper-connections: mixing residual streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.elementwise import PIECE
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import has_counts
from ggmlpy.graph.tensor import Tensor

COMB, PRE, POST = (
    Form("hyper_connections.cu", name) for name in ("dsv4_hc_comb", "dsv4_hc_pre", "dsv4_hc_post")
)
COMB_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "mixes", "scale", "base")),
        ("eps", "f4"),
        ("n_iter", "i4"),
        ("n_tokens", "i4"),
    ],
    align=True,
)
PRE_ARGS = np.dtype(
    [*((name, TENSOR) for name in ("y", "x", "weights")), ("scale", "f4"), ("gated", "i4")],
    align=True,
)
POST_ARGS = np.dtype(
    [(name, TENSOR) for name in ("y", "x", "residual", "post", "comb")], align=True
)
_WARP = 32
_THREADS = 128
_SHARED_BYTES = 48 << 10  # that every block may have


def _matrix_fits(step: Step) -> bool:
    n = step.results["y"].ne[0]
    return 4 * int(n) ** 2 <= _SHARED_BYTES and not has_counts((n,))


@kernel("dsv4_hc_comb", ("f32",) * 3, forms=[COMB], requires=_matrix_fits)
def dsv4_hc_comb(w: Work) -> Iterator[Launch]:
    n, _, n_all, _ = w["y"].ne
    n_tokens = max(1, _WARP // n)  # a thread has a line of a matrix
    shared_bytes = 4 * n_tokens * n**2
    grid = blocks(n_all, n_tokens), 1, 1
    yield Launch(COMB, COMB_ARGS, grid, _WARP, shared_bytes, {"n_tokens": n_tokens})


def _over_tokens(x: Tensor) -> tuple[int, int, int]:
    """A thread for each piece of the rows of x [E, T]."""
    return blocks(blocks(x.ne[0], PIECE) * int(x.ne[1]), _THREADS), 1, 1


@kernel("dsv4_hc_pre", ("f32",) * 2, forms=[PRE])
def dsv4_hc_pre(w: Work) -> Iterator[Launch]:
    yield Launch(PRE, PRE_ARGS, _over_tokens(w["y"]), _THREADS)


def _post(w: Work) -> Iterator[Launch]:
    yield Launch(POST, POST_ARGS, _over_tokens(w["x"]), _THREADS)


kernel("dsv4_hc_post", ("f32",) * 3, forms=[POST])(_post)
kernel("dsv4_hc_post", ("f32",) * 4, forms=[POST])(_post)
