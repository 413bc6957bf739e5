"""What a CPU can do at most: loops of nothing but loads, or nothing but products, compiled by the
compiler of the kernels for the same instruction set.

    read     bytes a second that plain loads bring from memory
    fma      multiply-adds of f32 a second, in registers
    dot      multiply-adds of bytes a second: vpdpbusd, or without VNNI vpmaddubsw and vpmaddwd;
             kernels are faster where codes are small (formats/short_dots.py)
    tiles    multiply-adds of bytes a second in AMX tiles; `bf16 tiles` those of bf16

Loops of products have as many independent sums as hide their latency, and their factors are in
registers or in the first cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
from llvmlite import ir

from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.backends.cpu.kernel import Entry, Int, entry
from ggmlpy.backends.cpu.simd import amx, arith
from ggmlpy.backends.cpu.simd.amx import CONFIG_BYTES, FILE_BYTES, ROW_BYTES, ROWS, Shape, Tiles
from ggmlpy.backends.cpu.simd.core import (
    Const,
    Emitter,
    Tile,
    Type,
    f32x16,
    i8x64,
    i32x16,
    i64,
    intrinsic,
    typed,
    void,
)
from ggmlpy.backends.cpu.simd.dot import dot4_u7s8
from ggmlpy.backends.cpu.simd.product import after, parts, tile_of
from ggmlpy.backends.cpu.simd.tile import tile_f32x16
from ggmlpy.common.limits import starting_threads
from ggmlpy.graph.buffer import aligned_bytes

LINE = 64
N_SUMS_BYTES = 16 * LINE  # where a loop leaves its sums, so that none is left out
N_TILE_SUMS = 4  # tiles of sums; two more hold factors
FACTORS_BYTES = 32 * LINE  # of a loop of products: the first cache holds them
SECONDS = 0.01  # that a loop of products runs for, about
_BEGIN_ROUNDS = 1 << 10

# The sums of a loop. With 32 registers of 512 bits 12 hide a latency of 5 cycles on 2 ports, and
# leave room for their factors; with 16 of 256 bits a vector of 16 takes two, and 4 hide 4 cycles.
_N_SUMS = {True: 12, False: 4}


def _infer_zeros(*args: Type | Const) -> Any:
    if len(args) == 1 and isinstance(args[0], Const):
        return (Tile(i32x16, args[0].value), args[0])
    return None


@typed(_infer_zeros)
def tile_i32x16(b: Emitter, n: Const) -> Any:
    """`n` vectors of i32 zeros; `n` is a constant."""
    return ir.Constant(Tile(i32x16, n.value).ir, None)


def _infer_dots(*args: Type | Const) -> Any:
    if len(args) == 3 and isinstance(args[0], Tile):
        return (args[0], args[0], i64, i64)
    return None


@typed(_infer_dots)
def add_dots(b: Emitter, sums: Any, x: Any, w: Any) -> Any:
    """Each sum plus products of the 64 bytes at x with those at w, w + 64, ..., in fours."""
    of_x = b.load_from(x, i8x64)
    return tile_of(
        b,
        (
            dot4_u7s8(b, total, of_x, b.load_from(after(b, w, LINE * t), i8x64))
            for t, total in enumerate(parts(b, sums))
        ),
    )


@typed(_infer_dots)
def add_fmas(b: Emitter, sums: Any, x: Any, w: Any) -> Any:
    """Each sum plus the product of the 16 f32 at x with those at w, w + 64, ..."""
    of_x = b.load_from(x, f32x16)
    return tile_of(
        b,
        (
            arith.fma(b, of_x, b.load_from(after(b, w, LINE * t), f32x16), total)
            for t, total in enumerate(parts(b, sums))
        ),
    )


@typed(lambda *args: (args[0], args[0], i64) if len(args) == 2 else None)
def or_lines(b: Emitter, sums: Any, address: Any) -> Any:
    """Each sum or-ed with a line of memory, one after another."""
    return tile_of(
        b,
        (
            b.or_(total, b.load_from(after(b, address, LINE * t), i32x16))
            for t, total in enumerate(parts(b, sums))
        ),
    )


@typed(lambda *args: (void, args[0], i64) if len(args) == 2 else None)
def store_sums(b: Emitter, sums: Any, address: Any) -> None:
    """The sums, one after another."""
    for t, total in enumerate(parts(b, sums)):
        b.store_to(after(b, address, LINE * t), total)


def _declare_read() -> Entry:
    @entry(void, i64, i64, i64)
    def read_lines(at: Int, n_bytes: Int, sums_at: Int) -> None:
        sums = tile_i32x16(8)
        for i in range(0, n_bytes, 512):
            sums = or_lines(sums, at + i)
        store_sums(sums, sums_at)

    return read_lines


def _declare_loops(n: int) -> tuple[Entry, Entry]:
    """The loops of dots and of fmas with `n` sums: (factors, rounds, sums)."""

    @entry(void, i64, i64, i64, name=f"dots_{n}")
    def dots(factors: Int, n_rounds: Int, sums_at: Int) -> None:
        sums = tile_i32x16(n)
        for i in range(n_rounds):
            sums = add_dots(sums, factors + ((i & 7) << 6), factors + 1024)
        store_sums(sums, sums_at)

    @entry(void, i64, i64, i64, name=f"fmas_{n}")
    def fmas(factors: Int, n_rounds: Int, sums_at: Int) -> None:
        sums = tile_f32x16(n)
        for i in range(n_rounds):
            sums = add_fmas(sums, factors + ((i & 7) << 6), factors + 1024)
        store_sums(sums, sums_at)

    return dots, fmas


_TILES = Tiles(*[Shape(ROWS, ROW_BYTES)] * (N_TILE_SUMS + 2))


@intrinsic(void, i64, i64, i64)
def multiply_tiles(b: Emitter, factors: Any, n_rounds: Any, work: Any) -> None:
    """Products of bytes in tiles, N_TILE_SUMS a round; `work` has CONFIG_BYTES + FILE_BYTES."""
    _in_tiles(b, factors, n_rounds, work, _TILES.product)


@intrinsic(void, i64, i64, i64)
def multiply_bf16_tiles(b: Emitter, factors: Any, n_rounds: Any, work: Any) -> None:
    """The same of bf16."""
    _in_tiles(b, factors, n_rounds, work, _TILES.add_product_of_bf16)


def _in_tiles(b: Emitter, factors: Any, n_rounds: Any, work: Any, product: Any) -> None:
    file = after(b, work, CONFIG_BYTES)
    _TILES.configure(b, file, work)
    for tile in (N_TILE_SUMS, N_TILE_SUMS + 1):
        _TILES.load(b, file, tile, factors, ir.Constant(i64.ir, ROW_BYTES))

    def multiply(_: Any) -> None:
        for tile in range(N_TILE_SUMS):
            product(b, file, tile, N_TILE_SUMS, N_TILE_SUMS + 1)

    b.repeat(n_rounds, multiply)
    amx.release(b)


@entry(void, i64, i64, i64)
def tiles_of_bytes(factors: Int, n_rounds: Int, work: Int) -> None:
    multiply_tiles(factors, n_rounds, work)


@entry(void, i64, i64, i64)
def tiles_of_bf16(factors: Int, n_rounds: Int, work: Int) -> None:
    multiply_bf16_tiles(factors, n_rounds, work)


READ = _declare_read()
LOOPS = {n: _declare_loops(n) for n in _N_SUMS.values()}


class Machine:
    """The loops for one instruction set, and memory of each thread to run them on.

    `memory_bytes` are read by all threads together; more than the caches hold.
    """

    def __init__(self, isa: ISA, n_threads: int, memory: np.ndarray) -> None:
        self._n_threads = n_threads
        share = len(memory) // n_threads // 512 * 512
        self._parts = [memory[i * share : (i + 1) * share] for i in range(n_threads)]
        self._factors = [aligned_bytes(FACTORS_BYTES) for _ in range(n_threads)]
        self._work = [
            aligned_bytes(N_SUMS_BYTES + CONFIG_BYTES + FILE_BYTES) for _ in range(n_threads)
        ]
        n = _N_SUMS["avx512" in isa.has]
        dots, fmas = LOOPS[n]
        self._loops: dict[str, tuple[Entry, int]] = {"fma": (fmas, 16 * n), "dot": (dots, 64 * n)}
        if isa.has & amx.TILES_BY:
            self._loops["tiles"] = tiles_of_bytes, N_TILE_SUMS * ROWS * ROWS * ROW_BYTES
            self._loops["bf16 tiles"] = tiles_of_bf16, N_TILE_SUMS * ROWS * ROWS * ROW_BYTES // 2
        addresses = shared_jit(isa).load([READ, *(loop for loop, _ in self._loops.values())])
        made = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
        self._code: dict[Entry, Callable[..., None]] = {e: made(a) for e, a in addresses.items()}
        self._rounds: dict[str, int] = {}

    def measure(self, seconds: float = SECONDS) -> dict[str, float]:
        """Bytes a second as "read", and multiply-adds a second of each loop, of all threads."""
        with starting_threads(), ThreadPoolExecutor(self._n_threads) as pool:
            found = {"read": self._read(pool)}
            for name, (loop, n_products) in self._loops.items():
                if name not in self._rounds:
                    self._rounds[name] = self._rounds_of(pool, loop, seconds)
                n_rounds = self._rounds[name]
                spent = self._run(pool, loop, n_rounds)
                found[name] = self._n_threads * n_rounds * n_products / spent
        return found

    def _rounds_of(self, pool: ThreadPoolExecutor, loop: Entry, seconds: float) -> int:
        """How many rounds, by doubling, take at least half that long."""
        n_rounds = _BEGIN_ROUNDS
        while self._run(pool, loop, n_rounds) < seconds / 2:
            n_rounds *= 2
        return n_rounds

    def _read(self, pool: ThreadPoolExecutor) -> float:
        code = self._code[READ]

        def read(i: int) -> None:
            part = self._parts[i]
            code(part.ctypes.data, len(part), self._work[i].ctypes.data)

        return sum(map(len, self._parts)) / _timed(pool, read, self._n_threads)

    def _run(self, pool: ThreadPoolExecutor, loop: Entry, n_rounds: int) -> float:
        code = self._code[loop]

        def multiply(i: int) -> None:
            code(self._factors[i].ctypes.data, n_rounds, self._work[i].ctypes.data)

        return _timed(pool, multiply, self._n_threads)


def _timed(pool: ThreadPoolExecutor, work: Callable[[int], None], n_threads: int) -> float:
    began = perf_counter()
    list(pool.map(work, range(n_threads)))
    return perf_counter() - began


def best(samples: list[Mapping[str, float]]) -> dict[str, float]:
    """The best of each ceiling."""
    return {name: max(sample[name] for sample in samples) for name in samples[0]}
