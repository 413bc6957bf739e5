"""Two groups of weights that are unpacked for many rows of x: the bits of few rows."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.formats.unpacked_pairs import LEAST_ROWS, MOST_ROWS, TILE_ROWS
from ggmlpy.graph.quants import Bytes
from tests.cpu.conftest import ISAS
from tests.cpu.products import (
    F32,
    check_product,
    dequantized,
    random_x,
    run,
    same_bits,
    weight_bytes,
)

# Rows that are too few, that leave 0 to 3 over, as many as are multiplied at a time, and more: as
# few as another time needs, and one less.
MANY = (
    *range(LEAST_ROWS - 1, LEAST_ROWS + TILE_ROWS + 1),
    *(MOST_ROWS - 1, MOST_ROWS, MOST_ROWS + 1),
    *(MOST_ROWS + LEAST_ROWS - 1, MOST_ROWS + LEAST_ROWS, 2 * MOST_ROWS + LEAST_ROWS + 2),
)


def product(raw: Bytes, type: str, x: F32) -> F32:
    """[n, m] from weight rows [m, row_bytes] and x [n, k]; by one thread, which has all rows of x
    in one chunk."""
    weight = ggmlpy.from_bytes(raw, type, (x.shape[-1], len(raw)))
    return run(ops.mul_mat(weight, ggmlpy.from_numpy(x)), n_threads=1).reshape(len(x), len(raw))


@pytest.mark.skipif("avx512" not in ISAS, reason="the CPU has no AVX512")
@pytest.mark.parametrize("type", ["q3_K", "q6_K"])
@pytest.mark.parametrize("k", [256, 768])
def test_values_and_bits(type: str, k: int) -> None:
    """Of one group alone, two, two and a part, and enough to need no smaller chunks of x."""
    x = random_x(max(MANY), k)
    for m in (16, 32, 37, 100):
        raw = weight_bytes(type, m, k, seed=m)
        few = np.concatenate([product(raw, type, x[i : i + 8]) for i in range(0, len(x), 8)])
        check_product(few, dequantized(raw, type), x, type)
        for n in MANY:
            same_bits(product(raw, type, x[:n]), few[:n])
