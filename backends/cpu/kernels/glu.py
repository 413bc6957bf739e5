"""Gated linear units: act(gate) * up, of two tensors or of the halves of one's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.segments import SEGMENT, n_segments
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd import math
from ggmlpy.backends.cpu.simd.arith import maximum, minimum, quotient
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16,
    load_f16x16_part,
    load_f32x16,
    load_f32x16_part,
    store_f16x16,
    store_f16x16_part,
    store_f32x16,
    store_f32x16_part,
)

FIELDS = [("y", TENSOR), ("a", TENSOR), ("b", TENSOR), ("swapped", "i4")]


def _rows(node: Any) -> bool:
    return all(types.rows_ok(tensor) for tensor in (node, *node.src))


# Those that are fused with products, by op: parameters, gated(p, gate, up)
GATED: dict[str, tuple[tuple[str, ...], Inline]] = {}


def _glu(op: str, params: tuple[str, ...], gated: Inline, fused: bool = True) -> None:
    if fused:
        GATED[op] = params, gated
    args = np.dtype([*FIELDS, *((name, "f4") for name in params)], align=True)
    f32 = 4, load_f32x16, load_f32x16_part, store_f32x16, store_f32x16_part
    f16 = 2, load_f16x16, load_f16x16_part, store_f16x16, store_f16x16_part
    _glu_of_type(op, args, gated, "f32", *f32)
    _glu_of_type(op, args, gated, "f16", *f16)


def _glu_of_type(
    op: str,
    args: np.dtype,
    gated: Inline,
    type: str,
    size: int,
    load: Intrinsic,
    load_part: Intrinsic,
    store: Intrinsic,
    store_part: Intrinsic,
) -> None:
    @kernel(op, (type,), args=args, requires=_rows, name=f"{op}_{type}", also=[(op, (type, type))])
    def glu(p: Record, ith: Int, nth: Int) -> None:
        """y = gated(record, gate, up), by segments of rows."""
        n = p.y.ne0
        per_row = n_segments(n, SEGMENT)
        tasks = n_rows(p.y) * per_row
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            row = quotient(task, per_row)
            start = (task - row * per_row) * SEGMENT
            gate = row_ptr(p.a, row) + size * start
            if p.b.ptr != 0:
                up = row_ptr(p.b, row) + size * start
            elif p.swapped != 0:
                up = gate
                gate += size * n
            else:
                up = gate + size * n
            y = row_ptr(p.y, row) + size * start
            m = min(SEGMENT, n - start)
            for i in range(0, m, 16):
                at = size * i
                if m - i >= 16:
                    store(y + at, gated(p, load(gate + at), load(up + at)))
                else:
                    v = gated(p, load_part(gate + at, m - i), load_part(up + at, m - i))
                    store_part(y + at, v, m - i)


def _times_up(activation: Intrinsic) -> Inline:
    @inline
    def gated(p: Record, gate: Any, up: Any) -> Any:
        return activation(gate) * up

    return gated


@inline
def _relu_times_up(p: Record, gate: Any, up: Any) -> Any:
    return maximum(0.0, gate) * up


@inline
def _oai(p: Record, gate: Any, up: Any) -> Any:
    g = minimum(p.limit, gate)
    u = minimum(p.limit, maximum(-p.limit, up))
    return g * math.sigmoid(g * p.alpha) * (u + 1.0)


@inline
def _clamped(p: Record, gate: Any, up: Any) -> Any:
    return math.silu(minimum(p.limit, gate)) * minimum(p.limit, maximum(-p.limit, up))


_glu("reglu", (), _relu_times_up)
_glu("swiglu", (), _times_up(math.silu))
_glu("geglu", (), _times_up(math.gelu))
_glu("geglu_erf", (), _times_up(math.gelu_erf))
_glu("geglu_quick", (), _times_up(math.gelu_quick))
_glu("swiglu_oai", ("alpha", "limit"), _oai)
_glu("swiglu_clamp", ("limit",), _clamped, fused=False)
