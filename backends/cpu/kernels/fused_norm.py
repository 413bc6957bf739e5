"""Normalisation fused with neighbouring operations, without writing rows to memory in between.

    NORM_MUL[norm]   y = norm(x) * weight [+ b]
    ADD_NORM         sum = a + b, or rms_norm(a) * inner + b;  y = rms_norm(sum) * weight

Every number is rounded as by separate kernels, so results have the same bits. `weight`
and `b` are repeated to the shape of y; in ADD_NORM all but the weights have one shape. A sum that
nothing else reads has no memory: its rows are those of y, before the weights are applied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Kernel, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.norm import moments_of_row, rms_of_row
from ggmlpy.backends.cpu.kernels.segments import repeated_row_ptr
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f32x16_part,
    store_f32x16,
    store_f32x16_part,
)

ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("weight", TENSOR), ("b", TENSOR), ("eps", "f4")], align=True
)
ADD_ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("sum", TENSOR),
        ("a", TENSOR),
        ("b", TENSOR),
        ("inner", TENSOR),
        ("weight", TENSOR),
        ("inner_eps", "f4"),
        ("eps", "f4"),
    ],
    align=True,
)


@inline
def shift_scale_weigh(x: Int, y: Int, n: Int, minus: Any, factor: Any, weight: Int) -> None:
    """y = (x - minus) * factor * weight."""
    for i in range(0, n, 16):
        at = 4 * i
        if n - i >= 16:
            v = (load_f32x16(x + at) - minus) * factor
            store_f32x16(y + at, v * load_f32x16(weight + at))
        else:
            v = (load_f32x16_part(x + at, n - i) - minus) * factor
            store_f32x16_part(y + at, v * load_f32x16_part(weight + at, n - i), n - i)


@inline
def add_row(a: Int, b: Int, y: Int, n: Int) -> None:
    """y = a + b."""
    for i in range(0, n, 16):
        at = 4 * i
        if n - i >= 16:
            store_f32x16(y + at, load_f32x16(a + at) + load_f32x16(b + at))
        else:
            v = load_f32x16_part(a + at, n - i) + load_f32x16_part(b + at, n - i)
            store_f32x16_part(y + at, v, n - i)


@inline
def shift_scale_weigh_add(
    x: Int, y: Int, n: Int, minus: Any, factor: Any, weight: Int, b: Int
) -> None:
    """y = (x - minus) * factor * weight + b; y may be x or b."""
    for i in range(0, n, 16):
        at = 4 * i
        if n - i >= 16:
            v = (load_f32x16(x + at) - minus) * factor
            store_f32x16(y + at, v * load_f32x16(weight + at) + load_f32x16(b + at))
        else:
            v = (load_f32x16_part(x + at, n - i) - minus) * factor
            v = v * load_f32x16_part(weight + at, n - i) + load_f32x16_part(b + at, n - i)
            store_f32x16_part(y + at, v, n - i)


def _norm_mul(op: str, measure: Inline) -> Kernel:
    @kernel(
        f"{op}+mul",
        ("f32", "f32"),
        args=ARGS,
        name=f"{op}_mul_f32",
        also=[(f"{op}+mul+add", ("f32", "f32", "f32"))],
    )
    def norm_mul(p: Record, ith: Int, nth: Int) -> None:
        """y = norm(x) * weight, + b where there is one. Threads share the rows."""
        n = p.x.ne0
        rows = n_rows(p.x)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            x, y = row_ptr(p.x, row), row_ptr(p.y, row)
            weight = repeated_row_ptr(p.weight, p.x, row)
            minus, factor = measure(x, n, p.eps)
            if p.b.ptr == 0:
                shift_scale_weigh(x, y, n, minus, factor, weight)
            else:
                b = repeated_row_ptr(p.b, p.x, row)
                shift_scale_weigh_add(x, y, n, minus, factor, weight, b)

    return norm_mul


NORM_MUL = {
    "rms_norm": _norm_mul("rms_norm", rms_of_row),
    "norm": _norm_mul("norm", moments_of_row),
}


def _bind_sum(node: Any, builder: Any) -> dict[str, float]:
    """What a plain sum has in a field of the other's."""
    return {"inner_eps": 0.0}


@kernel(
    "add+rms_norm+mul",
    ("f32", "f32", "f32"),
    args=ADD_ARGS,
    bind=_bind_sum,
    name="add_rms_norm_mul_f32",
    also=[("rms_norm+mul+add+rms_norm+mul", ("f32", "f32", "f32", "f32"))],
)
def ADD_NORM(p: Record, ith: Int, nth: Int) -> None:
    """The residual sum, and its norm as the input of a block. Threads share the rows.

    A row of the sum stays in the cache for its norm and for the product with the weights.
    """
    n = p.a.ne0
    rows = n_rows(p.a)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        a, b = row_ptr(p.a, row), row_ptr(p.b, row)
        y = row_ptr(p.y, row)
        total = y
        if p.sum.ptr != 0:
            total = row_ptr(p.sum, row)
        if p.inner.ptr == 0:
            add_row(a, b, total, n)
        else:
            minus, factor = rms_of_row(a, n, p.inner_eps)
            inner = repeated_row_ptr(p.inner, p.a, row)
            shift_scale_weigh_add(a, total, n, minus, factor, inner, b)
        minus, factor = rms_of_row(total, n, p.eps)
        weight = repeated_row_ptr(p.weight, p.a, row)
        shift_scale_weigh(total, y, n, minus, factor, weight)
