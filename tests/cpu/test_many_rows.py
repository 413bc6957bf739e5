"""Products of float weights with many rows of x: in wide tiles, the bits of few rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.formats.many_rows import LEAST_ROWS, MOST_ROWS, STRETCH, WIDTH
from ggmlpy.graph.quants import Bytes, from_float
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import ISAS
from tests.cpu.products import (
    F32,
    FLOATS,
    at_the_end_of_a_page,
    check_product,
    dequantized,
    each_product,
    random_x,
    run,
    same_bits,
    weight_bytes,
)

# Tiles that are whole, that leave 1 to 5 rows over, and as many as are multiplied at a time.
MANY = (*range(LEAST_ROWS, 2 * WIDTH + 1), MOST_ROWS - 1, MOST_ROWS, MOST_ROWS + 1, MOST_ROWS + 7)
# With and without a rest of a block of 32, of one vector or two; one stretch, and several.
SIZES = (1, 16, 33, 50, 64, STRETCH - 1, STRETCH, STRETCH + 1, STRETCH + 49, 2 * STRETCH + 32)
linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")


def product(raw: Bytes, type: str, x: F32, isa: str = ISAS[0]) -> F32:
    """[n, m] from weight rows [m, row_bytes] and x [n, k]."""
    y = ops.mul_mat(ggmlpy.from_bytes(raw, type, (x.shape[-1], len(raw))), ggmlpy.from_numpy(x))
    return run(y, isa).reshape(len(x), len(raw))


def few_at_a_time(raw: Bytes, type: str, x: F32, isa: str = ISAS[0]) -> F32:
    def each() -> Iterator[F32]:
        for i in range(0, len(x), LEAST_ROWS - 1):
            yield product(raw, type, x[i : i + LEAST_ROWS - 1], isa)

    return np.concatenate(list(each()))


@each_product(FLOATS)
def test_values_and_bits(isa: str, type: str) -> None:
    for k in SIZES:
        raw, x = weight_bytes(type, 37, k, seed=k), random_x(max(MANY), k)
        few = few_at_a_time(raw, type, x, isa)
        check_product(few, dequantized(raw, type), x, type)
        for n in MANY:
            same_bits(product(raw, type, x[:n], isa), few[:n])


@each_product(FLOATS)
def test_groups_that_are_not_whole(isa: str, type: str) -> None:
    k = STRETCH + 40
    for m in (1, 2, 5, 16, 17):
        raw, x = weight_bytes(type, m, k, seed=m), random_x(WIDTH + 3, k)
        same_bits(product(raw, type, x, isa), few_at_a_time(raw, type, x, isa))


@each_product(FLOATS)
def test_zeros_infinities_and_sums_that_vanish(isa: str, type: str) -> None:
    """Signs of zeros, and inf and NaN where few rows have them."""
    special = np.array([0, -0.0, 1e-30, -1e-30, np.inf, -np.inf, np.nan, 1, -1], np.float32)
    rng = np.random.default_rng(5)
    for k in (32, 47, STRETCH + 32):
        w, x = rng.choice(special[:4], (20, k)), rng.choice(special[:4], (20, k))
        w[0], x[0] = 1e-30, -1e-30  # all products are -0
        x[10:, ::16] = rng.choice(special, (10, len(range(0, k, 16))))
        raw = from_float(w, TYPES[type])
        many, few = product(raw, type, x, isa), few_at_a_time(raw, type, x, isa)
        np.testing.assert_array_equal(np.isnan(many), np.isnan(few))
        numbers = ~np.isnan(few)
        same_bits(many[numbers], few[numbers])
        assert (many[:10] == 0).any()
        assert not numbers.all()


@each_product(FLOATS)
def test_a_bias_is_added_last(isa: str, type: str) -> None:
    raw, bias = weight_bytes(type, 37, 50), random_x(37)
    x = random_x(MOST_ROWS + 2, 50)
    weight = ggmlpy.from_bytes(raw, type, (50, 37))
    y = ops.add(ops.mul_mat(weight, ggmlpy.from_numpy(x)), ggmlpy.from_numpy(bias))
    same_bits(run(y, isa), product(raw, type, x, isa) + bias)


@each_product(FLOATS)
def test_experts_with_many_few_and_no_rows(isa: str, type: str) -> None:
    k, m, n = 70, 21, 130
    raw, x = weight_bytes(type, 4 * m, k), random_x(n, 1, k)
    ids = np.repeat(
        np.array([0, 3, 1], np.int32), [MOST_ROWS + WIDTH, n - MOST_ROWS - WIDTH - 2, 2]
    )
    ids = np.random.default_rng(0).permutation(ids)
    experts = ggmlpy.from_bytes(raw, type, (k, m, 4))
    node = ops.mul_mat_id(experts, ggmlpy.from_numpy(x), ggmlpy.from_numpy(ids[:, None]))
    got = run(node, isa).reshape(n, m)
    for expert, rows in enumerate(raw.reshape(4, m, -1)):
        mine = ids == expert
        if mine.any():
            same_bits(got[mine], few_at_a_time(rows, type, x[mine, 0], isa))


@linux
@each_product(FLOATS)
def test_the_last_row_is_read_no_further(isa: str, type: str) -> None:
    for k, m in ((STRETCH + 5, 17), (STRETCH, 3)):
        raw, x = weight_bytes(type, m, k), random_x(WIDTH + 1, k)
        want = product(raw, type, x, isa)
        with at_the_end_of_a_page(raw) as stored:
            got = product(stored, type, x, isa)
        same_bits(got, want)
