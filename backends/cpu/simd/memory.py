"""Loads and stores. Addresses are integers; no alignment is required."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.convert import (
    bf16_bits,
    f16_bits,
    from_bf16_bits,
    from_f16_bits,
)
from ggmlpy.backends.cpu.simd.core import (
    Emitter,
    Vec,
    f32,
    f32x16,
    f64,
    f64x16,
    i8,
    i8x16,
    i8x64,
    i16,
    i16x16,
    i16x32,
    i32,
    i32x16,
    i64,
    intrinsic,
    suffix,
    void,
)

# --- one number ---------------------------------------------------------------------------------


@intrinsic(i64, i64)
def load_i64(b: Emitter, ptr: Any) -> Any:
    """One i64."""
    return b.load_from(ptr, i64)


@intrinsic(i32, i64)
def load_i32(b: Emitter, ptr: Any) -> Any:
    """One i32."""
    return b.load_from(ptr, i32)


@intrinsic(i64, i64)
def load_i16(b: Emitter, ptr: Any) -> Any:
    """One i16 as an i64."""
    return b.sext(b.load_from(ptr, i16), i64.ir)


@intrinsic(i64, i64)
def load_u16(b: Emitter, ptr: Any) -> Any:
    """One u16 as an i64."""
    return b.zext(b.load_from(ptr, i16), i64.ir)


@intrinsic(i64, i64)
def load_i8(b: Emitter, ptr: Any) -> Any:
    """One i8 as an i64."""
    return b.sext(b.load_from(ptr, i8), i64.ir)


@intrinsic(i64, i64)
def load_u8(b: Emitter, ptr: Any) -> Any:
    """One u8 as an i64."""
    return b.zext(b.load_from(ptr, i8), i64.ir)


@intrinsic(i64, i64)
def load_u32(b: Emitter, ptr: Any) -> Any:
    """One u32 as an i64."""
    return b.zext(b.load_from(ptr, i32), i64.ir)


@intrinsic(f32, i64)
def load_f32(b: Emitter, ptr: Any) -> Any:
    """One f32."""
    return b.load_from(ptr, f32)


@intrinsic(f64, i64)
def load_f64(b: Emitter, ptr: Any) -> Any:
    """One f64."""
    return b.load_from(ptr, f64)


@intrinsic(f32, i64)
def load_f16(b: Emitter, ptr: Any) -> Any:
    """One f16 as f32."""
    return from_f16_bits(b, b.load_from(ptr, i16))


@intrinsic(f32, i64)
def load_bf16(b: Emitter, ptr: Any) -> Any:
    """One bf16 as f32."""
    return from_bf16_bits(b, b.load_from(ptr, i16))


@intrinsic(void, i64, i64)
def store_i64(b: Emitter, ptr: Any, value: Any) -> None:
    """One i64."""
    b.store_to(ptr, value)


@intrinsic(void, i64, i64)
def store_i32(b: Emitter, ptr: Any, value: Any) -> None:
    """The low 32 bits of an integer."""
    b.store_to(ptr, b.trunc(value, i32.ir))


@intrinsic(void, i64, i64)
def store_i16(b: Emitter, ptr: Any, value: Any) -> None:
    """The low 16 bits of an integer."""
    b.store_to(ptr, b.trunc(value, i16.ir))


@intrinsic(void, i64, i64)
def store_i8(b: Emitter, ptr: Any, value: Any) -> None:
    """The low 8 bits of an integer."""
    b.store_to(ptr, b.trunc(value, i8.ir))


@intrinsic(void, i64, f32)
def store_f32(b: Emitter, ptr: Any, value: Any) -> None:
    """One f32."""
    b.store_to(ptr, value)


@intrinsic(void, i64, f64)
def store_f64(b: Emitter, ptr: Any, value: Any) -> None:
    """One f64."""
    b.store_to(ptr, value)


@intrinsic(void, i64, f32)
def store_f16(b: Emitter, ptr: Any, value: Any) -> None:
    """An f32 as f16, rounded to nearest even."""
    b.store_to(ptr, f16_bits(b, value))


@intrinsic(void, i64, f32)
def store_bf16(b: Emitter, ptr: Any, value: Any) -> None:
    """An f32 as bf16, rounded to nearest even."""
    b.store_to(ptr, bf16_bits(b, value))


# --- whole vectors ------------------------------------------------------------------------------


@intrinsic(f32x16, i64)
def load_f32x16(b: Emitter, ptr: Any) -> Any:
    """16 f32."""
    return b.load_from(ptr, f32x16)


@intrinsic(i32x16, i64)
def load_i32x16(b: Emitter, ptr: Any) -> Any:
    """16 i32."""
    return b.load_from(ptr, i32x16)


@intrinsic(i8x16, i64)
def load_i8x16(b: Emitter, ptr: Any) -> Any:
    """16 bytes."""
    return b.load_from(ptr, i8x16)


@intrinsic(i8x64, i64)
def load_i8x64(b: Emitter, ptr: Any) -> Any:
    """64 bytes."""
    return b.load_from(ptr, i8x64)


@intrinsic(f32x16, i64)
def load_f16x16(b: Emitter, ptr: Any) -> Any:
    """16 f16 as f32."""
    return from_f16_bits(b, b.load_from(ptr, i16x16))


@intrinsic(f32x16, i64)
def load_bf16x16(b: Emitter, ptr: Any) -> Any:
    """16 bf16 as f32."""
    return from_bf16_bits(b, b.load_from(ptr, i16x16))


@intrinsic(i32x16, i64)
def load_i8x16_as_i32(b: Emitter, ptr: Any) -> Any:
    """16 signed bytes as i32."""
    return b.sext(b.load_from(ptr, i8x16), i32x16.ir)


@intrinsic(i32x16, i64)
def load_u8x16_as_i32(b: Emitter, ptr: Any) -> Any:
    """16 unsigned bytes as i32."""
    return b.zext(b.load_from(ptr, i8x16), i32x16.ir)


@intrinsic(void, i64, f32x16)
def store_f32x16(b: Emitter, ptr: Any, value: Any) -> None:
    """16 f32."""
    b.store_to(ptr, value)


@intrinsic(void, i64, i32x16)
def store_i32x16(b: Emitter, ptr: Any, value: Any) -> None:
    """16 i32."""
    b.store_to(ptr, value)


@intrinsic(void, i64, i8x16)
def store_i8x16(b: Emitter, ptr: Any, value: Any) -> None:
    """16 bytes."""
    b.store_to(ptr, value)


@intrinsic(void, i64, i8x64)
def store_i8x64(b: Emitter, ptr: Any, value: Any) -> None:
    """64 bytes."""
    b.store_to(ptr, value)


@intrinsic(void, i64, f32x16)
def store_f16x16(b: Emitter, ptr: Any, value: Any) -> None:
    """16 f32 as f16, rounded to nearest even."""
    b.store_to(ptr, f16_bits(b, value))


@intrinsic(void, i64, f32x16)
def store_bf16x16(b: Emitter, ptr: Any, value: Any) -> None:
    """16 f32 as bf16, rounded to nearest even."""
    b.store_to(ptr, bf16_bits(b, value))


@intrinsic(f64x16, i64)
def load_f64x16(b: Emitter, ptr: Any) -> Any:
    """16 f64."""
    return b.load_from(ptr, f64x16)


# --- the first n lanes --------------------------------------------------------------------------


def first_lanes(b: Emitter, n: Any, n_lanes: int) -> Any:
    """The mask of the lanes below `n`, an i64 LLVM value."""
    index = ir.Constant(ir.VectorType(ir.IntType(64), n_lanes), list(range(n_lanes)))
    return b.icmp_signed("<", index, b.splat(n, n_lanes))


def load_part(b: Emitter, ptr: Any, n: Any, vector: Vec) -> Any:
    """The first `n` lanes of a vector, then zeros, in an emitting function."""
    align = ir.Constant(i32.ir, 1)
    name = f"llvm.masked.load.{suffix(vector.ir)}.p0"
    mask = first_lanes(b, n, vector.n)
    return b.llvm(name, vector.ir, b.pointer(ptr, vector.ir), align, mask, b.const(vector.ir, 0))


def _store_part(b: Emitter, ptr: Any, value: Any, n: Any) -> None:
    align = ir.Constant(i32.ir, 1)
    name = f"llvm.masked.store.{suffix(value.type)}.p0"
    mask = first_lanes(b, n, value.type.count)
    b.llvm(name, void.ir, value, b.pointer(ptr, value.type), align, mask)


@intrinsic(f32x16, i64, i64)
def load_f32x16_part(b: Emitter, ptr: Any, n: Any) -> Any:
    """The first `n` of 16 f32, then zeros; no byte past them is touched."""
    return load_part(b, ptr, n, f32x16)


@intrinsic(i8x16, i64, i64)
def load_i8x16_part(b: Emitter, ptr: Any, n: Any) -> Any:
    """The first `n` of 16 bytes, then zeros; no byte past them is touched."""
    return load_part(b, ptr, n, i8x16)


@intrinsic(i16x32, i64, i64)
def load_i16x32_part(b: Emitter, ptr: Any, n: Any) -> Any:
    """The first `n` of 32 i16, then zeros; no byte past them is touched."""
    return load_part(b, ptr, n, i16x32)


@intrinsic(f32x16, i64, i64)
def load_f16x16_part(b: Emitter, ptr: Any, n: Any) -> Any:
    """The first `n` of 16 f16 as f32, then zeros; no byte past them is touched."""
    return from_f16_bits(b, load_part(b, ptr, n, i16x16))


@intrinsic(f32x16, i64, i64)
def load_bf16x16_part(b: Emitter, ptr: Any, n: Any) -> Any:
    """The first `n` of 16 bf16 as f32, then zeros; no byte past them is touched."""
    return from_bf16_bits(b, load_part(b, ptr, n, i16x16))


@intrinsic(void, i64, f32x16, i64)
def store_f32x16_part(b: Emitter, ptr: Any, value: Any, n: Any) -> None:
    """The first `n` of 16 f32; no byte past them is touched."""
    _store_part(b, ptr, value, n)


@intrinsic(void, i64, i8x16, i64)
def store_i8x16_part(b: Emitter, ptr: Any, value: Any, n: Any) -> None:
    """The first `n` of 16 bytes; no byte past them is touched."""
    _store_part(b, ptr, value, n)


@intrinsic(void, i64, f32x16, i64)
def store_f16x16_part(b: Emitter, ptr: Any, value: Any, n: Any) -> None:
    """The first `n` of 16 f32 as f16; no byte past them is touched."""
    _store_part(b, ptr, f16_bits(b, value), n)


@intrinsic(void, i64, f32x16, i64)
def store_bf16x16_part(b: Emitter, ptr: Any, value: Any, n: Any) -> None:
    """The first `n` of 16 f32 as bf16; no byte past them is touched."""
    _store_part(b, ptr, bf16_bits(b, value), n)


# --- past the caches ----------------------------------------------------------------------------


@intrinsic(void, i64, f32x16)
def store_line_past_caches(b: Emitter, ptr: Any, value: Any) -> None:
    """16 f32 to the whole cache line at `ptr`, a multiple of 64, which is neither read before nor
    kept in a cache. Other threads find it there after `store_fence`."""
    line = b.store(value, b.pointer(ptr, value.type))
    line.align = 64
    line.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(i32.ir, 1)]))


@intrinsic(void)
def store_fence(b: Emitter) -> None:
    """What was stored past the caches comes before all that is stored from now on."""
    if "x86" in b.isa.has:
        b.llvm("llvm.x86.sse.sfence", void.ir)
    else:
        b.fence("release")


# --- broadcasts and hints -----------------------------------------------------------------------


@intrinsic(i8x64, i64)
def bcast4_i8x64(b: Emitter, ptr: Any) -> Any:
    """The 4 bytes at `ptr`, 16 times."""
    return b.bitcast(b.splat(b.load_from(ptr, i32), 16), i8x64.ir)


@intrinsic(void, i64)
def prefetch(b: Emitter, ptr: Any) -> None:
    """Prefetches the cache line at `ptr`, to be read very soon; any address is allowed."""
    _prefetch(b, ptr, 3)


@intrinsic(void, i64)
def prefetch_l2(b: Emitter, ptr: Any) -> None:
    """Prefetches the cache line at `ptr` into the second level: it takes no fill buffer of the
    first level, and evicts nothing there."""
    _prefetch(b, ptr, 2)


def _prefetch(b: Emitter, ptr: Any, locality: int) -> None:
    word = ir.IntType(32)
    pointer = b.pointer(ptr, i8.ir)
    read, keep, data = (ir.Constant(word, value) for value in (0, locality, 1))
    b.llvm("llvm.prefetch.p0", void.ir, pointer, read, keep, data)
