"""Atomics and waiting, for the plan runner and the thread pool; all sequentially consistent."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Emitter, i32, i64, intrinsic, void

_ORDER = "seq_cst"


@intrinsic(i64, i64)
def atomic_load_i64(b: Emitter, ptr: Any) -> Any:
    """The aligned integer at `ptr`."""
    return b.load_atomic(b.pointer(ptr, i64.ir), _ORDER, 8)


@intrinsic(void, i64, i64)
def atomic_store_i64(b: Emitter, ptr: Any, value: Any) -> None:
    """Stores an aligned integer."""
    b.store_atomic(value, b.pointer(ptr, i64.ir), _ORDER, 8)


@intrinsic(i64, i64, i64)
def atomic_add_i64(b: Emitter, ptr: Any, value: Any) -> Any:
    """Adds to the aligned integer at `ptr` and returns what it was before."""
    return b.atomic_rmw("add", b.pointer(ptr, i64.ir), value, _ORDER)


@intrinsic(i64, i64, i64, i64)
def compare_exchange_i64(b: Emitter, ptr: Any, expected: Any, value: Any) -> Any:
    """Stores `value` if `expected` is at `ptr`; returns what was there either way."""
    pair = b.cmpxchg(b.pointer(ptr, i64.ir), expected, value, _ORDER, _ORDER)
    return b.extract_value(pair, 0)


@intrinsic(void)
def pause(b: Emitter) -> None:
    """Tells the core that this is a spinning loop."""
    if "x86" in b.isa.has:
        b.llvm("llvm.x86.sse2.pause", void.ir)
    elif "arm64" in b.isa.has:
        b.llvm("llvm.aarch64.hint", void.ir, ir.Constant(i32.ir, 1))


@intrinsic(void)
def yield_thread(b: Emitter) -> None:
    """Lets another thread of the machine run."""
    b.llvm("sched_yield", i32.ir)


@intrinsic(void, i64, i64, i64, i64)
def call_kernel(b: Emitter, address: Any, record: Any, ith: Any, nth: Any) -> None:
    """Calls the compiled kernel at `address`."""
    signature = ir.FunctionType(void.ir, [i64.ir, i64.ir, i64.ir])
    b.call(b.pointer(address, signature), [record, ith, nth])
