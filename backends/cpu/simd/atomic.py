"""Atomics, waiting and calls by address, for threads; atomics are sequentially consistent."""

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
    """Adds to the aligned integer at `ptr` and returns the previous value."""
    return b.atomic_rmw("add", b.pointer(ptr, i64.ir), value, _ORDER)


@intrinsic(i64, i64, i64, i64)
def compare_exchange_i64(b: Emitter, ptr: Any, expected: Any, value: Any) -> Any:
    """Stores `value` if `expected` is at `ptr`; returns the previous value in both cases."""
    pair = b.cmpxchg(b.pointer(ptr, i64.ir), expected, value, _ORDER, _ORDER)
    return b.extract_value(pair, 0)


@intrinsic(void)
def pause(b: Emitter) -> None:
    """Tells the core that this is a spinning loop."""
    if "x86" in b.isa.has:
        b.llvm("llvm.x86.sse2.pause", void.ir)
    elif "arm64" in b.isa.has:
        b.llvm("llvm.aarch64.hint", void.ir, ir.Constant(i32.ir, 1))


@intrinsic(void, i64)
def nap(b: Emitter, microseconds: Any) -> None:
    """Sleeps for about that long, at least some 50 us; yields where sleeping is not available."""
    b.llvm("usleep", i32.ir, b.trunc(microseconds, i32.ir))


@intrinsic(i64)
def ticks(b: Emitter) -> Any:
    """A clock that costs little to read and counts in a unit of its own."""
    if "x86" in b.isa.has:
        return b.llvm("llvm.readcyclecounter", i64.ir)
    if "arm64" in b.isa.has:
        read = ir.InlineAsm(ir.FunctionType(i64.ir, []), "mrs $0, cntvct_el0", "=r", True)
        return b.call(read, [])
    return b.llvm("clock", i64.ir)  # processor time, which passes while a thread spins


@intrinsic(void, i64, i64, i64, i64)
def call_kernel(b: Emitter, address: Any, record: Any, ith: Any, nth: Any) -> None:
    """Calls the compiled kernel at `address`."""
    signature = ir.FunctionType(void.ir, [i64.ir, i64.ir, i64.ir])
    b.call(b.pointer(address, signature), [record, ith, nth])


@intrinsic(i64, i64, i64, i64, i64, i64, i64)
def call_pack(b: Emitter, address: Any, *args: Any) -> Any:
    """Calls the compiled packing function at `address` (formats/columns.py)."""
    signature = ir.FunctionType(i64.ir, [arg.type for arg in args])
    return b.call(b.pointer(address, signature), args)
