"""x as the quantised formats multiply it: int8 blocks of 32 with one scale, 64 bytes each.

    32 x f32 -> qs 32 x i8 | d f32 | -d*S f32 | -d*S0, -d*S1 f32 | -S i32 | -S0, -S1 i32 | unused

    d   = max |x| / 127          x is about d * qs, qs = x / d rounded to nearest, ties to even
    S   = sum of qs, S0 and S1 of its two halves of 16; negative, because they are subtracted

The sums serve formats whose codes have an offset (a weight is scale * (u - zero): the product
starts at -zero * S) or a minimum (a weight is scale * u - minimum). One cache line a block, the
same for every format. A block with max |x| < 2^-119 counts as zeros. A block that holds inf or
NaN gets the scale NaN: every product of its row is NaN, and no other.

PYTEST_DONT_REWRITE (asserts: the code of kernels, and so its key, is the same in every process).
"""

from __future__ import annotations

import numpy as np

BLOCK = 32  # elements
HALF = 16
BLOCK_DTYPE = np.dtype(
    [
        ("qs", "i1", BLOCK),
        ("d", "<f4"),
        ("minus_d_sum", "<f4"),
        ("minus_d_sums", "<f4", 2),
        ("minus_sum", "<i4"),
        ("minus_sums", "<i4", 2),
        ("unused", "V4"),
    ]
)
BLOCK_BYTES = BLOCK_DTYPE.itemsize
_FIELDS = BLOCK_DTYPE.fields
assert _FIELDS is not None
QS, D, MINUS_D_SUM, MINUS_D_SUMS, MINUS_SUM, MINUS_SUMS, _ = (f[1] for f in _FIELDS.values())


def row_bytes(k: int) -> int:
    """From one quantised row of x with `k` elements, whole blocks, to the next.

    An odd number of cache lines: with a multiple of 4096 bytes, as for k = 2048, the same block of
    all rows would fall into one set of the L1 cache, which has 8 to 12 lines.
    """
    return (k // BLOCK | 1) * BLOCK_BYTES
