"""Rotary position embedding.

Interpolation and YaRN are linear in the angle, so the angle of pair i is

    t_i = sum over axes a of pos[a] * weights[a][i] / freq_factors[i]

with a table of f64 weights made along with the plan. The angles and their reduction are f64 too,
so that they are accurate at any position. A thread rotates whole rows (a head of a token) and keeps
cosines and sines of its current token in its scratch memory, cos f32 and then sin f32:

    NORMAL    c0 c0 c1 c1 ...  | -s0 s0 -s1 s1 ...       for vectors of neighbouring pairs
    else      c0 c1 ...        | s0 s1 ...
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.rows import n_rows, share
from ggmlpy.backends.cpu.simd.arith import (
    fma,
    interleave_high,
    interleave_low,
    quotient,
    swap_neighbours,
)
from ggmlpy.backends.cpu.simd.convert import f32_to_f64
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.math import cos_f64, sin_f64
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16,
    load_f16x16_part,
    load_f32x16,
    load_f32x16_part,
    load_f64x16,
    load_i32,
    store_f16x16,
    store_f16x16_part,
    store_f32x16,
    store_f32x16_part,
)
from ggmlpy.graph.buffer import HostBuffer, aligned_bytes

FIELDS: list[tuple[str, Any]] = [
    ("y", TENSOR),
    ("x", TENSOR),
    ("pos", TENSOR),
    ("freq_factors", TENSOR),
    ("weights", "i8"),  # f64 [n_axes, padded]
    ("scratch", "i8"),  # f32 [threads, 4 * padded]
    ("padded", "i8"),  # n_pairs up to a multiple of 16
    ("n_offs", "i8"),  # elements before those that are rotated
    ("n_pairs", "i4"),
    ("n_axes", "i4"),
    ("normal", "i4"),  # pairs of neighbours
    ("magnitude", "f4"),
]
ARGS = np.dtype(FIELDS, align=True)


@lru_cache(maxsize=256)
def _weights(op: Any) -> tuple[HostBuffer, float]:
    """The angles of one step along each axis, f64 [n_axes, padded], and the scale of cos and sin.

    `op.angles` computes them; it is linear in the position.
    """
    n_axes, padded = op.mode.n_axes, padded_pairs(op)
    buffer = HostBuffer(aligned_bytes(8 * n_axes * padded))
    table = buffer.data.view(np.float64).reshape(n_axes, padded)
    magnitude = 1.0
    for axis, step in enumerate(np.eye(n_axes)):
        angles, magnitude = op.angles(step, None)
        table[axis, : op.n_pairs] = angles[0]
    return buffer, magnitude


def padded_pairs(op: Any) -> int:
    return -(-int(op.n_pairs) // 16) * 16


def bind(node: Any, builder: Any) -> dict[str, float]:
    buffer, magnitude = _weights(node.op)
    builder.keep.append(buffer)
    return {
        "weights": buffer.address,
        "padded": padded_pairs(node.op),
        "n_pairs": node.op.n_pairs,
        "n_axes": node.op.mode.n_axes,
        "n_offs": node.op.n_offs,
        "normal": int(node.op.mode == 0),
        "magnitude": magnitude,
    }


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return 16 * padded_pairs(node.op) * n_threads


def _rows(node: Any) -> bool:
    return types.rows_ok(node) and types.rows_ok(node.src[0])


@inline
def make_table(p: Record, token: Int, cos: Int, sin: Int) -> None:
    """The cosines and sines of one token's angles."""
    for i in range(0, p.n_pairs, 16):
        address = p.pos.ptr + token * p.pos.nb0
        angle = load_f64x16(p.weights + 8 * i) * np.float64(load_i32(address))
        for axis in range(1, p.n_axes):
            address += p.x.ne2 * p.pos.nb0
            weights = load_f64x16(p.weights + 8 * (axis * p.padded + i))
            angle = angle + weights * np.float64(load_i32(address))
        if p.freq_factors.ptr != 0:
            factors = load_f32x16_part(p.freq_factors.ptr + 4 * i, p.n_pairs - i)
            angle = angle / f32_to_f64(factors)
        c = cos_f64(angle) * p.magnitude
        s = sin_f64(angle) * p.magnitude
        if p.normal != 0:
            minus = s * -1.0
            store_f32x16(cos + 8 * i, interleave_low(c, c))
            store_f32x16(cos + 8 * i + 64, interleave_high(c, c))
            store_f32x16(sin + 8 * i, interleave_low(minus, s))
            store_f32x16(sin + 8 * i + 64, interleave_high(minus, s))
        else:
            store_f32x16(cos + 4 * i, c)
            store_f32x16(sin + 4 * i, s)


def _rotate(
    size: int,
    load: Intrinsic,
    load_part: Intrinsic,
    store: Intrinsic,
    store_part: Intrinsic,
) -> Inline:
    """The function `rotate`, for one element type of x and y."""

    @inline
    def rotate_neighbours(x: Int, y: Int, n: Int, cos: Int, sin: Int) -> None:
        for i in range(0, n, 16):
            c, s = load_f32x16(cos + 4 * i), load_f32x16(sin + 4 * i)
            if n - i >= 16:
                v = load(x + size * i)
                store(y + size * i, fma(v, c, swap_neighbours(v) * s))
            else:
                v = load_part(x + size * i, n - i)
                store_part(y + size * i, fma(v, c, swap_neighbours(v) * s), n - i)

    @inline
    def rotate_halves(x: Int, y: Int, n: Int, cos: Int, sin: Int) -> None:
        half = quotient(n, 2)
        for i in range(0, half, 16):
            c, s = load_f32x16(cos + 4 * i), load_f32x16(sin + 4 * i)
            at, other = size * i, size * (half + i)
            if half - i >= 16:
                a, b = load(x + at), load(x + other)
                store(y + at, a * c - b * s)
                store(y + other, fma(a, s, b * c))
            else:
                a, b = load_part(x + at, half - i), load_part(x + other, half - i)
                store_part(y + at, a * c - b * s, half - i)
                store_part(y + other, fma(a, s, b * c), half - i)

    @inline
    def rotate(p: Record, x: Int, y: Int, cos: Int, sin: Int) -> None:
        """The row at x rotated by a table of cosines and sines, its rest unchanged, to y."""
        n_rotated, start = 2 * p.n_pairs, size * p.n_offs
        if p.normal != 0:
            rotate_neighbours(x + start, y + start, n_rotated, cos, sin)
        else:
            rotate_halves(x + start, y + start, n_rotated, cos, sin)
        for i in range(0, p.n_offs, 16):
            m = min(16, p.n_offs - i)
            store_part(y + size * i, load_part(x + size * i, m), m)
        for i in range(p.n_offs + n_rotated, p.x.ne0, 16):
            m = min(16, p.x.ne0 - i)
            store_part(y + size * i, load_part(x + size * i, m), m)

    return rotate


def _rope(type: str, rotate: Inline) -> None:
    @kernel(
        "rope",
        (type, "i32"),
        args=ARGS,
        requires=_rows,
        bind=bind,
        scratch_bytes=_scratch_bytes,
        name=f"rope_{type}",
        also=[
            ("rope", (type, "i32", "f32")),
            ("rope_back", (type, "i32")),
            ("rope_back", (type, "i32", "f32")),
        ],
    )
    def rope(p: Record, ith: Int, nth: Int) -> None:
        """Rows in order, heads of a token one after another; other elements are copied."""
        cos = p.scratch + 16 * p.padded * ith
        sin = cos + 8 * p.padded
        token = -1
        rows = n_rows(p.x)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            plane = quotient(row, p.x.ne1)
            i1 = row - plane * p.x.ne1
            i3 = quotient(plane, p.x.ne2)
            i2 = plane - i3 * p.x.ne2
            if i2 != token:
                token = i2
                make_table(p, token, cos, sin)
            x = p.x.ptr + i1 * p.x.nb1 + i2 * p.x.nb2 + i3 * p.x.nb3
            y = p.y.ptr + i1 * p.y.nb1 + i2 * p.y.nb2 + i3 * p.y.nb3
            rotate(p, x, y, cos, sin)


rotate_f32 = _rotate(4, load_f32x16, load_f32x16_part, store_f32x16, store_f32x16_part)
_rope("f32", rotate_f32)
_rope("f16", _rotate(2, load_f16x16, load_f16x16_part, store_f16x16, store_f16x16_part))
