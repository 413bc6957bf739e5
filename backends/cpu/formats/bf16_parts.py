"""x as products of bf16 take it: every number as the sum of three bf16, in blocks of 32.

    32 x f32 -> 32 first parts | 32 second parts | 32 third parts        64 bytes each

A part is what is left of x, cut to the 8 bits that a bf16 has. An f32 has 24 of them, so the three
are x exactly, but for what lies below 2^-126, which the instructions take for zero. Where x is
inf or NaN its first part is, and the others are zero. The last block of a row is filled up with
zeros.
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
