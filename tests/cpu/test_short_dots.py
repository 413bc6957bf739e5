"""Sums in 16 bits on AVX2 (formats/short_dots.py) are exact, however large codes and x are."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.formats.short_dots import short_dots
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.backends.cpu.kernel import Entry, Int, entry
from ggmlpy.backends.cpu.simd.core import Emitter, i8x64, i32x16, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.product import after
from tests.cpu.conftest import ISAS
from tests.cpu.products import QUANTIZED, run, same_bits
from tests.cpu.test_matmul import extreme_rows

pytestmark = pytest.mark.skipif("avx2" not in ISAS, reason="this machine has no AVX2")

N_VECTORS = 8
# The largest code and the zero, of which all else follows: from a few bits to all of a byte.
FORMS = ((2, 1), (15, 8), (28, 16), (31, 0), (63, 32), (127, 0), (255, 128))


def _declare(largest: int, zero: int) -> Entry:
    @intrinsic(void, i64, i64, i64)
    def add_dots(b: Emitter, u: Any, x: Any, out: Any) -> None:
        codes, words = (
            [b.load_from(after(b, at, 64 * j), i8x64) for j in range(N_VECTORS)] for at in (u, x)
        )
        # What is added is the zero that short_dots leaves to its caller.
        sums = short_dots(b, codes, largest, zero, words, lambda left: b.const(i32x16.ir, left))
        b.store_to(out, sums)

    @entry(void, i64, i64, i64, name=f"short_dots_{largest}")
    def dots(u: Int, x: Int, out: Int) -> None:
        add_dots(u, x, out)

    return dots


ENTRIES = {form: _declare(*form) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
def test_sums_are_exact(form: tuple[int, int]) -> None:
    largest, zero = form
    address = shared_jit(select("avx2")).load([ENTRIES[form]])[ENTRIES[form]]
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)
    rng = np.random.default_rng(largest)
    shape = (N_VECTORS, 64)
    top, signs = np.full(shape, 127), np.tile([1, -1], (N_VECTORS, 32))
    ends = rng.choice([-127, 127], shape)
    left = zero if zero < 128 else 0
    out = np.zeros(16, np.int32)
    for codes in (
        np.zeros(shape),
        np.full(shape, largest),
        rng.choice([0, largest], shape),
        rng.integers(0, largest + 1, shape),
    ):
        for xs in (top, -top, top * signs, ends, rng.integers(-127, 128, shape), 0 * top):
            u, x = codes.astype(np.uint8), xs.astype(np.int8)
            call(u.ctypes.data, x.ctypes.data, out.ctypes.data)
            less = u.astype(np.int32) - (zero - left)
            want = (less * x.astype(np.int32)).reshape(N_VECTORS, 16, 4).sum((0, 2))
            np.testing.assert_array_equal(out, want + left)


@pytest.mark.parametrize("type", QUANTIZED)
def test_extreme_codes_have_the_bits_of_other_instruction_sets(type: str) -> None:
    """Of every format, whose largest code is stated by it. 7 rows of x take all widths but 8."""
    k = 512
    raw = extreme_rows(type, k)
    signs = np.tile([1.5, -1.5], k // 2)
    ends = np.random.default_rng(1).choice([-1.5, 1.5], (4, k))
    x = np.stack([np.full(k, 1.5), np.full(k, -1.5), signs, *ends]).astype(np.float32)
    y = ops.mul_mat(ggmlpy.from_bytes(raw, type, (k, len(raw))), ggmlpy.from_numpy(x))
    same_bits(run(y, "avx2"), run(y, ISAS[0]))
