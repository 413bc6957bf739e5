"""Shared by masked softmax and attention: slopes of ALiBi, rows of masks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, Record, inline
from ggmlpy.backends.cpu.simd.arith import remainder
from ggmlpy.graph.buffer import HostBuffer, aligned_bytes
from ggmlpy.ops.softmax import alibi_slopes


@lru_cache(maxsize=64)
def _slopes(n_head: int, max_bias: float) -> HostBuffer:
    buffer = HostBuffer(aligned_bytes(4 * n_head))
    buffer.data.view(np.float32)[:] = alibi_slopes(n_head, max_bias)
    return buffer


def bind_slopes(builder: Any, n_head: int, max_bias: float) -> int:
    """The address of each head's slope, f32; 0 where all are 1."""
    if max_bias == 0:
        return 0
    buffer = _slopes(n_head, max_bias)
    builder.keep.append(buffer)
    return buffer.address


@inline
def mask_row(mask: Record, query: Int, head: Int, sequence: Int) -> Int:
    """The address of a row of an operand `mask` [n_kv, n_query, Hm, Sm]; 0 where it is absent."""
    if mask.ptr == 0:
        return 0
    at = mask.ptr + query * mask.nb1
    return at + remainder(head, mask.ne2) * mask.nb2 + remainder(sequence, mask.ne3) * mask.nb3
