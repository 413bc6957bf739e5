"""Products of float weights of up to 16 elements a row with many rows of x: the bits of few."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.formats.short_rows import LEAST_ROWS, MOST
from ggmlpy.graph.quants import Bytes, from_float
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import ISAS
from tests.cpu.products import (
    F32,
    FLOATS,
    at_the_end_of_a_page,
    check_product,
    dequantized,
    random_x,
    run,
    same_bits,
    weight_bytes,
)

SIZES = (1, 4, 8, 15, MOST, MOST + 1)
linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")
MANY = (LEAST_ROWS - 1, LEAST_ROWS, 9, 11, 100)


def product(raw: Bytes, type: str, x: F32, isa: str = ISAS[0], bias: F32 | None = None) -> F32:
    """[n, m] from weight rows [m, row_bytes] and x [n, k]."""
    y = ops.mul_mat(ggmlpy.from_bytes(raw, type, (x.shape[-1], len(raw))), ggmlpy.from_numpy(x))
    y = y if bias is None else ops.add(y, ggmlpy.from_numpy(bias))
    return run(y, isa).reshape(len(x), len(raw))


def one_by_one(raw: Bytes, type: str, x: F32, isa: str = ISAS[0]) -> F32:
    return np.concatenate([product(raw, type, x[i : i + 1], isa) for i in range(len(x))])


@pytest.mark.parametrize("type", FLOATS)
@pytest.mark.parametrize("k", SIZES)
def test_values_and_bits(type: str, k: int) -> None:
    for m in (1, 16, 37):
        raw, x, bias = weight_bytes(type, m, k, seed=m), random_x(max(MANY), k), random_x(m)
        few = one_by_one(raw, type, x)
        check_product(few, dequantized(raw, type), x, type)
        for n in MANY:
            same_bits(product(raw, type, x[:n]), few[:n])
        same_bits(product(raw, type, x, bias=bias), few + bias)


@pytest.mark.parametrize("isa", ISAS)
def test_special_numbers(isa: str) -> None:
    """Zeros of both signs, what is too small for a product, infinities and NaN."""
    special = np.array([0, -0.0, 1e-30, -1e-30, 3e38, np.inf, -np.inf, np.nan, 1, -1], np.float32)
    rng = np.random.default_rng(5)
    for k in (3, 8, MOST):
        w, x = rng.choice(special[:6], (48, k)), rng.choice(special, (40, k))
        x[:20] = rng.choice(special[:4], (20, k))
        w[0], x[0], x[1] = 1e-30, -1e-30, -0.0  # all products are -0
        raw = from_float(w, TYPES["f32"])
        many, few = product(raw, "f32", x, isa), one_by_one(raw, "f32", x, isa)
        np.testing.assert_array_equal(np.isnan(many), np.isnan(few))
        numbers = ~np.isnan(few)
        same_bits(many[numbers], few[numbers])
        assert (many[:20] == 0).any()


@linux
@pytest.mark.parametrize("type", FLOATS)
def test_the_last_row_is_read_no_further(type: str) -> None:
    for k, m in ((7, 17), (MOST, 16), (1, 1)):
        raw, x = weight_bytes(type, m, k), random_x(9, k)
        want = product(raw, type, x)
        with at_the_end_of_a_page(raw) as stored:
            got = product(stored, type, x)
        same_bits(got, want)
