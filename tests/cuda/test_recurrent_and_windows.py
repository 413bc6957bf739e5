"""Kernels of recurrent layers, convolutions and pooling on the emulated device: counts of a run,
sizes that are not in the table, bits that do not depend on the tile. Scans: test_scans.py."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cuda.emulated import available
from ggmlpy.backends.cuda.kernels import convolution
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.checks import check_case
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.counted import Build
from tests.cuda.runs import DEVICE, assert_counts_decide, bits

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

RNG = np.random.default_rng(0)


def floats(*ne: int) -> Tensor:
    return from_numpy(RNG.uniform(-1, 1, ne[::-1]).astype(np.float32))


# --- counts that a run sets -----------------------------------------------------------------------

ONES = (1, 1, 1, 1, 1, 1)  # strides, paddings and dilations

# T tokens, S sequences
BUILDS: dict[str, Build] = {
    "short convolutions": lambda leaf, n: [
        ops.ssm_conv(leaf.floats("x", 2 + n.T, 37), leaf.floats("k", 3, 37)),
        ops.ssm_conv(
            leaf.floats("c", 37, 9), leaf.floats("k", 3, 37), taps=leaf.ids("taps", 9, 3, n.T)
        ),
    ],
    "the indexer": lambda leaf, n: [
        ops.lightning_indexer(
            leaf.floats("q", 12, 5, n.T),
            leaf.floats("k", 12, 1, n.S),
            leaf.floats("w", 5, n.T),
            leaf.mask("mask", n.S, n.T, 1, 1),
        )
    ],
    "hyper-connections": lambda leaf, n: [
        ops.dsv4_hc_comb(
            leaf.floats("mixes", 15, n.T), leaf.floats("a", 3), leaf.floats("b", 15), 1e-3, 3
        ),
        ops.dsv4_hc_pre(leaf.floats("x", 37, 3, n.T), leaf.floats("w", 3, n.T)),
        ops.dsv4_hc_post(
            leaf.floats("h", 37, n.T), leaf.floats("x", 37, 3, n.T), leaf.floats("w", 3, n.T), None
        ),
    ],
    "convolutions": lambda leaf, n: [
        ops.conv_2d_direct(leaf.floats("k", 3, 3, 2, 5), leaf.floats("x", 7, 5, 2, n.T), *ONES),
        ops.conv_2d_dw_direct(leaf.floats("d", 3, 3, 1, 2), leaf.floats("i", 7, 5, 2, n.T), *ONES),
        ops.im2col(leaf.floats("o", 3, 2), leaf.floats("y", 7, 2, n.T), *ONES, False, "f16"),
        ops.conv_transpose_1d(leaf.floats("t", 3, 5, 2), leaf.floats("l", n.T, 2), 2, 0, 1),
    ],
    "pooling and systems": lambda leaf, n: [
        ops.pool_2d(leaf.floats("x", 7, 5, 2, n.T), 0, 3, 2, 2, 1, 1, 1),
        ops.pool_1d(leaf.floats("l", n.T, 3), 1, 3, 1, 1),
        ops.solve_tri(leaf.floats("a", 5, 5, n.T), leaf.floats("b", 3, 5, n.T), True, True, False),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDS)
def test_counts_of_a_run(name: str) -> None:
    assert_counts_decide(BUILDS[name], 9, (9, 1, 4, 7))


# --- sizes that take other paths than those of the table ------------------------------------------


SIZES = [
    # mixing matrices of one stream, and of more than a warp has lanes
    *(Case("dsv4_hc_comb", ne=[((2 + c) * c, 5), (5,), ((2 + c) * c,)], eps=1e-3, n_iter=3)
      for c in (1, 40, 100)),
]  # fmt: skip


@pytest.mark.parametrize("case", SIZES, ids=lambda case: str(case.id))
def test_sizes(case: Case) -> None:
    assert check_case(case, DEVICE) == ""


@pytest.mark.parametrize("type", ["f32", "f16"])
def test_bits_do_not_depend_on_the_tile(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = ops.cast(floats(3, 3, 5, 70), type), floats(33, 9, 5, 2)
    small = bits(ops.conv_2d_direct(kernel, x, 1, 1, 1, 1, 1, 1))
    monkeypatch.setattr(convolution, "_BLOCKS_PER_SM", 0)
    large = bits(ops.conv_2d_direct(kernel, x, 1, 1, 1, 1, 1, 1))
    assert np.array_equal(small, large)
