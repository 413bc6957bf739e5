"""The types of elements in records: GGUF's numbers.

One compiled kernel serves several types where it tests the number once per row or per segment.
"""

from __future__ import annotations

from typing import Any

F32, F16, BF16, I32, I64 = 0, 1, 30, 26, 27
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL = 2, 3, 6, 7, 8, 20

FLOATS = ("f32", "f16", "bf16")


def type_field(source: Any) -> int:
    """The number of a tensor's type in a record (None: an absent tensor)."""
    return -1 if source is None else int(source.type.id)


def rows_ok(tensor: Any) -> bool:
    """Whether rows are contiguous."""
    return bool(tensor.rows_contiguous or tensor.ne[0] == 1)
