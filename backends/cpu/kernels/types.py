"""The types of elements as kernels see them: a number in the record, GGUF's own.

One compiled kernel serves several types where it asks for the number once per row or per segment.
"""

from __future__ import annotations

from typing import Any

F32, F16, BF16, I32, I64 = 0, 1, 30, 26, 27
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL = 2, 3, 6, 7, 8, 20

FLOATS = ("f32", "f16", "bf16")


def type_field(source: Any) -> int:
    """What goes into a record to tell the type of a tensor (None: an absent one)."""
    return -1 if source is None else int(source.type.id)


def rows_ok(tensor: Any) -> bool:
    """Whether the elements of each row lie one after another."""
    return bool(tensor.rows_contiguous or tensor.ne[0] == 1)
