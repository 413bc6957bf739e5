"""x for products with bf16 weights: every number as the sum of three bf16, in blocks of 32.

    32 x f32 -> 32 first parts | 32 second parts | 32 third parts        64 bytes each

A part is the remainder of x, truncated to the 8 mantissa bits of a bf16. An f32 has 24, so the sum
of the three is x exactly, except for parts below 2^-126, which the instructions take for zero.
Where x is inf or NaN its first part is too, and the others are zero. The last block of a row is
padded with zeros.
"""

from __future__ import annotations

BLOCK = 32  # elements
N_PARTS = 3
PART_BYTES = 2 * BLOCK
BLOCK_BYTES = N_PARTS * PART_BYTES


def row_bytes(k: int) -> int:
    """From one row of x with `k` elements to the next: an odd number of cache lines, for the reason
    given in activations.py."""
    n_blocks = -(-k // BLOCK)
    return (n_blocks * BLOCK_BYTES // 64 | 1) * 64
