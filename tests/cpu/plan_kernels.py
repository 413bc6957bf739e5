"""Kernels that show how plans run: who ran which node, in what order, and what was reported."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Record, entry, kernel, report
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_load_i64, nap, pause
from ggmlpy.backends.cpu.simd.core import Emitter, f32, i64, intrinsic, void
from ggmlpy.backends.cpu.simd.memory import load_i64, store_i64

Int = Any
COUNTS = np.dtype([("counter", "i8"), ("seen", "i8"), ("times", "i8")], align=True)
LIMIT = np.dtype([("ids", "i8"), ("n", "i8"), ("limit", "i8")], align=True)
MEETING = np.dtype(
    [("begun", "i8"), ("ended", "i8"), ("found", "i8"), ("stacks", "i8"), ("main", "i8")],
    align=True,
)
_MOST_STEPS = 1 << 22  # of waiting for others: seconds, where they do not come
_LATE_STEPS = 64  # some milliseconds
_ONE_STACK = 1 << 16  # bytes between calls of one thread


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


@intrinsic(i64)
def stack_address(b: Emitter) -> Any:
    """Where the stack of the calling thread is by now: it tells threads apart."""
    return b.ptrtoint(b.alloca(i64.ir), i64.ir)


@kernel("test_meet", ("i64",), args=MEETING)
def meet(p: Record, ith: Int, nth: Int) -> None:
    """Ends once all shares of its node have begun, so each is on a thread of its own; on threads
    whose stack is not `main` some time later. Notes how many had ended before it, and its stack."""
    store_i64(p.found + 8 * ith, atomic_load_i64(p.ended))
    here = stack_address()
    store_i64(p.stacks + 8 * ith, here)
    atomic_add_i64(p.begun, 1)
    steps = 0
    while atomic_load_i64(p.begun) < (p.node + 1) * nth and steps < _MOST_STEPS:
        steps += 1
        if steps & 255 == 0:
            nap(50)  # there may be more threads than cores
        else:
            pause()
    if abs(here - p.main) > _ONE_STACK:
        for _ in range(_LATE_STEPS):
            nap(50)
    atomic_add_i64(p.ended, 1)


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
