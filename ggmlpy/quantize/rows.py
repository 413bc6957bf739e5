"""Rows of f32 to stored blocks of any type, by several threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.limits import importing
from ggmlpy.errors import ShapeError, Unsupported
from ggmlpy.graph.buffer import address_of
from ggmlpy.graph.quants import from_float, has_quantizer
from ggmlpy.graph.types import TensorType

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_Compiled = Callable[[int, int, int, int, int, int], None]

_COMPILED = {
    "blocks": ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs"),
    "k_16": ("q2_K", "q3_K", "q6_K"),
    "k_32": ("q4_K", "q5_K"),
    "iq3": ("iq3_xxs", "iq3_s"),
    "iq2": ("iq2_xxs", "iq2_xs", "iq2_s"),
    "iq1": ("iq1_s", "iq1_m"),
}
_MODULE_OF = {name: module for module, names in _COMPILED.items() for name in names}
NEED_IMPORTANCE = ("iq2_xxs", "iq2_xs", "iq1_s")
_ROWS_AT_ONCE = 1 << 16  # elements: few enough for a cache, many enough for a call


def can_quantize(type: TensorType) -> bool:
    """Whether rows of f32 can be written as this type."""
    return type.name in _MODULE_OF or (has_quantizer(type) and type.name != "q8_K")


def quantize_rows(
    rows: Floats, type: TensorType, importance: Floats | None, pool: ThreadPoolExecutor
) -> Bytes:
    """Rows [n_rows, n] as blocks [n_rows, row_bytes], the bytes that llama.cpp makes.

    `importance` [n] says how much errors in each column count, None: the type's own weights.
    Raises Unsupported for a type without a quantiser, or one of `NEED_IMPORTANCE` without that,
    ShapeError unless rows are whole blocks.
    """
    n_rows, n = rows.shape
    if not can_quantize(type):
        raise Unsupported(f"{type.name} cannot be written: it has no quantiser here")
    if importance is None and type.name in NEED_IMPORTANCE:
        raise Unsupported(f"{type.name} cannot be written without the importances of the columns")
    rows = np.ascontiguousarray(rows, np.float32)
    out = np.empty((n_rows, type.row_bytes(n)), np.uint8)
    if importance is not None:
        if importance.shape != (n,):
            raise ShapeError(f"importances have shape {importance.shape}, rows have {n} elements")
        importance = np.ascontiguousarray(importance, np.float32)
    work = _compiled if type.name in _MODULE_OF else _plain
    step = max(1, _ROWS_AT_ONCE // n)
    tasks = [
        pool.submit(work, type, rows[i : i + step], importance, out[i : i + step])
        for i in range(0, n_rows, step)
    ]
    for task in tasks:
        task.result()
    return out


def _plain(type: TensorType, rows: Floats, importance: Floats | None, out: Bytes) -> None:
    out[:] = from_float(rows, type)


def _compiled(type: TensorType, rows: Floats, importance: Floats | None, out: Bytes) -> None:
    from ggmlpy.quantize.kernels.layout import BYTES

    scratch = np.zeros(BYTES + 64, np.uint8)
    weights = 0 if importance is None else address_of(importance)
    n_rows, n = rows.shape
    _function(type.name)(address_of(rows), address_of(out), n_rows, n, weights, address_of(scratch))


@cache
def _function(name: str, isa: str | None = None) -> _Compiled:
    with importing("the quantisers"):
        from importlib import import_module

        from ggmlpy.backends.cpu.isa import select
        from ggmlpy.backends.cpu.jit import shared_jit

    module = import_module(f"ggmlpy.quantize.kernels.{_MODULE_OF[name]}")
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
    function: Any = signature(shared_jit(select(isa)).address(getattr(module, f"quantize_{name}")))
    return function  # type: ignore[no-any-return]
