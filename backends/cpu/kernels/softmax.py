"""Softmax of rows with scale, mask, ALiBi and sinks; and the causal mask alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.masks import bind_slopes, mask_row
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    fma,
    iota_i32x16,
    less,
    maximum,
    quotient,
    select,
    splat_f32x16,
    splat_i32x16,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.math import exp
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16_part,
    load_f32,
    load_f32x16_part,
    store_f32x16_part,
)
from ggmlpy.backends.cpu.simd.reduce import max_lanes, sum_lanes

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        ("mask", TENSOR),
        ("sinks", TENSOR),
        ("slopes", "i8"),
        ("mask_type", "i4"),
        ("scale", "f4"),
    ],
    align=True,
)
DIAG_ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("n_past", "i8"), ("masked", "f4")], align=True)

_F16 = types.F16
_NEVER = float("-inf")


def _bind(node: Any, builder: Any) -> dict[str, float]:
    mask = node.src[1] if node.op.has_mask else None
    return {
        "slopes": bind_slopes(builder, node.ne[2], node.op.max_bias),
        "mask_type": types.type_field(mask),
    }


@inline
def load_mask(type: Int, ptr: Int, i: Int, n: Int) -> Any:
    """Entries i .. i + n - 1 of a mask row, n <= 16."""
    if type == _F16:
        return load_f16x16_part(ptr + 2 * i, n)
    return load_f32x16_part(ptr + 4 * i, n)


@inline
def scores(p: Record, x: Int, mask: Int, y: Int, slope: Any) -> Any:
    """Stores scale * x + slope * mask, -inf where the mask is, and returns the largest."""
    n = p.x.ne0
    largest = splat_f32x16(_NEVER)
    for i in range(0, n, 16):
        m = min(16, n - i)
        v = load_f32x16_part(x + 4 * i, m) * p.scale
        if mask != 0:
            bias = load_mask(p.mask_type, mask, i, m)
            v = select(equal(bias, _NEVER), _NEVER, fma(bias, slope, v))
        store_f32x16_part(y + 4 * i, v, m)
        v = select(less(iota_i32x16(), splat_i32x16(m)), v, _NEVER)
        largest = maximum(v, largest)
    return max_lanes(largest)


@inline
def exponentials(y: Int, n: Int, largest: Any) -> Any:
    """Replaces y by exp(y - largest) and returns the sum: lane i adds up i, i + 16, ..."""
    total = zero_f32x16()
    for i in range(0, n, 16):
        m = min(16, n - i)
        e = exp(load_f32x16_part(y + 4 * i, m) - largest)
        e = select(less(iota_i32x16(), splat_i32x16(m)), e, 0.0)
        store_f32x16_part(y + 4 * i, e, m)
        total = total + e
    return sum_lanes(total)


@inline
def scale_row(y: Int, n: Int, factor: Any) -> None:
    for i in range(0, n, 16):
        m = min(16, n - i)
        store_f32x16_part(y + 4 * i, load_f32x16_part(y + 4 * i, m) * factor, m)


_SERVED: list[tuple[str, tuple[str, ...]]] = [
    ("soft_max", ("f32", *mask, *sinks))
    for mask in ((), ("f16",), ("f32",))
    for sinks in ((), ("f32",))
]


@kernel(*_SERVED[0], args=ARGS, bind=_bind, also=dict.fromkeys(_SERVED[1:]))
def soft_max_f32(p: Record, ith: Int, nth: Int) -> None:
    """Row by row; a row with nothing above -inf gives 0."""
    n = p.x.ne0
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        plane = quotient(row, p.x.ne1)
        sequence = quotient(plane, p.x.ne2)
        head = plane - sequence * p.x.ne2
        y = row_ptr(p.y, row)
        slope = np.float32(1) if p.slopes == 0 else load_f32(p.slopes + 4 * head)
        mask = mask_row(p.mask, row - plane * p.x.ne1, head, sequence)
        largest = scores(p, row_ptr(p.x, row), mask, y, slope)
        if p.sinks.ptr != 0:
            largest = maximum(largest, load_f32(p.sinks.ptr + 4 * head))
        if largest == _NEVER:
            largest = np.float32(0)
        total = exponentials(y, n, largest)
        if p.sinks.ptr != 0:
            total += exp(load_f32(p.sinks.ptr + 4 * head) - largest)
        scale_row(y, n, np.float32(0) if total == np.float32(0) else np.float32(1) / total)


def _rows(node: Any) -> bool:
    return types.rows_ok(node) and types.rows_ok(node.src[0])


def _bind_masked(node: Any, builder: Any) -> dict[str, float]:
    return {"masked": node.op.masked}


@kernel(
    "diag_mask_inf",
    ("f32",),
    args=DIAG_ARGS,
    requires=_rows,
    bind=_bind_masked,
    name="diag_mask_f32",
    also=[("diag_mask_zero", ("f32",))],
)
def diag_mask_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = x up to column n_past + query, a constant after it."""
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        y = row_ptr(p.y, row)
        n_seen = p.n_past + row - quotient(row, p.x.ne1) * p.x.ne1 + 1
        for i in range(0, p.x.ne0, 16):
            m = min(16, p.x.ne0 - i)
            seen = less(iota_i32x16(), splat_i32x16(max(0, min(16, n_seen - i))))
            store_f32x16_part(y + 4 * i, select(seen, load_f32x16_part(x + 4 * i, m), p.masked), m)
