"""Small compiled functions for test_simd_lanes."""

from __future__ import annotations

from ggmlpy.backends.cpu.simd.arith import (
    interleave_high,
    interleave_low,
    less,
    lowest_bit,
    select,
    splat_f32x16,
    swap_neighbours,
)
from ggmlpy.backends.cpu.simd.block import (
    add_products,
    add_scaled,
    load_addresses,
    load_block,
    store_block,
    store_folds,
)
from ggmlpy.backends.cpu.simd.columns import sum_halved, transpose16
from ggmlpy.backends.cpu.simd.convert import bits_of_mask, f32_to_f64, mask_of_bits
from ggmlpy.backends.cpu.simd.core import i64
from ggmlpy.backends.cpu.simd.math import cos_f64, sin_f64
from ggmlpy.backends.cpu.simd.memory import (
    load_f32x16,
    load_f64x16,
    store_f32,
    store_f32x16,
    store_i64,
)
from ggmlpy.backends.cpu.simd.product import add_tiles
from ggmlpy.backends.cpu.simd.reduce import fold4, fold16, sum_lanes
from ggmlpy.backends.cpu.simd.tile import tile_f32x16
from tests.cpu.simd_kernels import Int, compiled


@compiled(i64, i64, i64)
def moves(x: Int, y: Int, out: Int) -> None:
    """Interleaved low and high halves, neighbours swapped."""
    a, b = load_f32x16(x), load_f32x16(y)
    store_f32x16(out, interleave_low(a, b))
    store_f32x16(out + 64, interleave_high(a, b))
    store_f32x16(out + 128, swap_neighbours(a))


@compiled(i64, i64, i64, i64)
def bits(x: Int, wanted: Int, out: Int, chosen: Int) -> None:
    """The bits of a mask, its lowest bit, and a choice by a mask made of bits."""
    found = bits_of_mask(less(0.0, load_f32x16(x)))
    store_i64(out, found)
    store_i64(out + 8, lowest_bit(found))
    store_f32x16(chosen, select(mask_of_bits(wanted), splat_f32x16(2.0), 3.0))


@compiled(i64, i64, i64)
def folds(x: Int, out: Int, apart: Int) -> None:
    """The sums of 16 vectors together, then one by one."""
    a = fold4(load_f32x16(x), load_f32x16(x + 64), load_f32x16(x + 128), load_f32x16(x + 192))
    x += 256
    b = fold4(load_f32x16(x), load_f32x16(x + 64), load_f32x16(x + 128), load_f32x16(x + 192))
    x += 256
    c = fold4(load_f32x16(x), load_f32x16(x + 64), load_f32x16(x + 128), load_f32x16(x + 192))
    x += 256
    d = fold4(load_f32x16(x), load_f32x16(x + 64), load_f32x16(x + 128), load_f32x16(x + 192))
    store_f32x16(out, fold16(a, b, c, d))
    x -= 768
    for i in range(16):
        store_f32(apart + 4 * i, sum_lanes(load_f32x16(x + 64 * i)))


@compiled(i64, i64, i64)
def wide_angles(angles: Int, steps: Int, out: Int) -> None:
    """Sine and cosine of f64 angles, and the sine of 4 angles over f32 steps."""
    angle = load_f64x16(angles)
    store_f32x16(out, sin_f64(angle))
    store_f32x16(out + 64, cos_f64(angle))
    store_f32x16(out + 128, sin_f64((angle * 3.0 + angle) / f32_to_f64(load_f32x16(steps))))


@compiled(i64, i64, i64)
def columns(x: Int, out: Int, sums: Int) -> None:
    """16 rows of 20 numbers transposed; the halved sums of the first 16 numbers of each row."""
    transpose16(x, 80, out, 128)
    low, high = load_block(out, 128, 8, 1), load_block(out + 1024, 128, 8, 1)
    store_block(add_tiles(low, high), sums, 64, 8)
    store_f32x16(sums, sum_halved(sums, 64))


_add_products = add_products(load_f32x16)
_add_scaled = add_scaled(load_f32x16, 64)


@compiled(i64, i64, i64, i64, i64)
def blocks(x: Int, y: Int, weights: Int, stride: Int, out: Int) -> None:
    """Blocks of 2 rows: loaded and stored; products with 4 rows; folded; sums scaled by numbers."""
    sums = tile_f32x16(8)
    for row in range(4):
        store_i64(out + 8 * row, row * stride)
    rows = load_addresses(y, out, 4)
    for d in range(0, stride, 64):
        sums = _add_products(sums, x + d, stride, rows, d, 2)
    store_block(load_block(x, stride, 2, 4), out, stride, 2)
    store_block(sums, out + 2 * stride, 256, 2)
    store_folds(sums, out + 2 * stride + 512, 64, 2)
    sums = _add_scaled(load_block(x, stride, 2, 4), y, weights, 4, 2)
    store_block(sums, out + 2 * stride + 640, 256, 2)
