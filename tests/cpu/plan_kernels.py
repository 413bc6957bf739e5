"""Kernels that show how plans run: who ran which node, in what order, and what was reported."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Record, entry, kernel, report
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64
from ggmlpy.backends.cpu.simd.core import Emitter, f32, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.memory import load_i64, store_i64

Int = Any
COUNTS = np.dtype([("counter", "i8"), ("seen", "i8"), ("times", "i8")], align=True)
LIMIT = np.dtype([("ids", "i8"), ("n", "i8"), ("limit", "i8")], align=True)


@kernel("test_count", ("i64",), args=COUNTS)
def count(p: Record, ith: Int, nth: Int) -> None:
    """Notes what thread ith finds in the counter, then adds to it."""
    store_i64(p.seen + 8 * ith, load_i64(p.counter))
    for _ in range(p.times):
        atomic_add_i64(p.counter, 1)


@kernel("test_limit", ("i64",), args=LIMIT)
def check_limit(p: Record, ith: Int, nth: Int) -> None:
    """Reports every id that is not below the limit."""
    for i in range(ith, p.n, nth):
        value = load_i64(p.ids + 8 * i)
        if value >= p.limit:
            report(p, value)


@entry(void, i64)
def raises(x: Int) -> None:
    if x > 3:
        raise ValueError("too large")


@intrinsic(void, i64)
def set_python_error(b: Emitter, message: Any) -> None:
    """Calls into Python's C API, which no kernel may."""
    b.llvm("PyErr_SetString", void.ir, message, message)


@entry(void, i64)
def calls_python(x: Int) -> None:
    set_python_error(x)


@entry(void, i64)
def allocates(x: Int) -> None:
    values = np.zeros(x)
    store_i64(x, int(values[0]))


@entry(void, i64)
def does_not_type(x: Int) -> None:
    store_i64(x, "text")


@entry(f32, f32, i64)
def raises_to_power(x: Any, n: Int) -> Any:
    return np.float32(x**n)
