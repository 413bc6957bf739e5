"""Conversion of stored bytes to and from numpy arrays, for any type and strides.

Arrays are in numpy order, rows last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ggmlpy.graph.quants import Bytes, from_float, to_float
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.types import BF16


def element_view(data: Bytes, spec: Spec, offset: int = 0) -> NDArray[Any]:
    """The elements `[ne3, ne2, ne1, ne0]` in place, as the stored type (bf16 as its u16 bits)."""
    dtype = np.dtype(np.uint16) if spec.type is BF16 else spec.type.dtype
    assert dtype is not None, "a quantised tensor has rows, not elements"
    extent = data[offset : offset + spec.n_bytes]
    # A buffer of dtype needs whole items: the extent ends with one, so its length may be cut down.
    base = np.ndarray((1,), dtype, buffer=extent) if extent.nbytes else np.empty(0, dtype)
    return as_strided(base, spec.ne[::-1], spec.nb[::-1])


def row_view(data: Bytes, spec: Spec, offset: int = 0) -> Bytes:
    """The stored rows `[ne3, ne2, ne1, row_bytes]` in place. Rows must be contiguous."""
    assert spec.rows_contiguous
    ne, nb = spec.ne, spec.nb
    extent = data[offset : offset + spec.n_bytes]
    return as_strided(extent, (ne[3], ne[2], ne[1], spec.row_bytes), (nb[3], nb[2], nb[1], 1))


def read_array(data: Bytes, spec: Spec, offset: int = 0) -> NDArray[Any]:
    """The values `[ne3, ne2, ne1, ne0]` as a copy; bf16 and quantised types as f32."""
    if spec.type.is_quantized:
        return to_float(row_view(data, spec, offset), spec.type)
    elements = element_view(data, spec, offset)
    if spec.type is BF16:
        return to_float(np.ascontiguousarray(elements).view(np.uint8), BF16)
    return elements.copy()


def write_array(
    data: Bytes,
    spec: Spec,
    offset: int,
    values: NDArray[Any],
    rows: NDArray[np.bool_] | None = None,
) -> None:
    """Store values `[ne3, ne2, ne1, ne0]`, converted to the tensor's type.

    `rows` `[ne3, ne2, ne1]` picks the rows to write; the bytes of the others stay as they are.
    """
    picked = slice(None) if rows is None else rows
    if spec.rows_contiguous:
        row_view(data, spec, offset)[picked] = from_float(values[picked], spec.type)
        return
    elements = element_view(data, spec, offset)
    converted = from_float(values, spec.type).view(elements.dtype)
    elements[picked] = converted[picked]
