"""Transposed convolutions, as sums over the input: no two threads add to one element.

Elements of the result that are a stride apart have neighbouring sources. A thread takes a line of
the result, copies the lines of x that it needs, padded with zeros, to its scratch memory, and
computes 4 channels by 32 such elements at a time in registers. Each is summed over channels, then
lines and columns of the kernel, in this order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.shape import clear_f32
from ggmlpy.backends.cpu.rows import share
from ggmlpy.backends.cpu.simd.arith import fma, quotient, remainder, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.memory import load_f32, load_f32x16, store_f32, store_f32x16

# Sizes of the kernel, the input and the result, its stride; elements of an input channel's weights
# (K), before a padded line (J) and of it (P); bytes of scratch memory a thread.
_SIZES = ("KW", "KH", "IC", "IW", "IH", "OC", "OW", "OH", "N", "step", "K", "J", "P")
_STRIDES = ("nbh", "nbc", "nbn", "stride", "scratch")
ARGS = np.dtype(
    [("y", TENSOR), ("kernel", TENSOR), ("x", TENSOR), *((n, "i8") for n in (*_SIZES, *_STRIDES))],
    align=True,
)
_TILE, _COLUMNS = 4, 32
_SPARE = 4 * _COLUMNS  # bytes for the columns of one channel
_ELEMENT_BYTES = {"f32": 4, "f16": 2}


def _numbers(node: Any) -> dict[str, int]:
    """A signal is an image of one line."""
    kernel_, x = node.src
    sizes: tuple[int, ...]
    if node.op.name == "conv_transpose_1d":
        sizes = (kernel_.ne[0], 1, x.ne[1], x.ne[0], 1, node.ne[1], node.ne[0], 1, 1, node.op.s0)
        strides = 0, x.nb[1], 0
    else:
        of_result = node.ne[2], node.ne[0], node.ne[1], node.ne[3]
        sizes = (*kernel_.ne[:2], x.ne[2], x.ne[0], x.ne[1], *of_result, node.op.stride)
        strides = x.nb[1], x.nb[2], x.nb[3]
    found = dict(zip((*_SIZES[:10], *_STRIDES[:3]), map(int, (*sizes, *strides)), strict=True))
    step = found["step"]
    n_lines = found["IC"] * -(-found["KH"] // step)
    found["K"] = found["KW"] * found["KH"]
    found["J"] = -(-found["KW"] // step)
    n = -(-found["OW"] // step)
    found["P"] = found["J"] + -(-n // _COLUMNS) * _COLUMNS
    n_floats = n_lines * found["P"] + _TILE * found["IC"] * found["K"]
    found["stride"] = -(-4 * n_floats // 64) * 64 + _SPARE
    return found


def _bind(node: Any, builder: Any) -> dict[str, int]:
    return _numbers(node)


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return n_threads * _numbers(node)["stride"]


@inline
def copy_lines(p: Record, n: Int, oh: Int, to: Int) -> None:
    """The lines of all channels that add to line oh of the result, by lines of the kernel."""
    for c in range(p.IC):
        for kh in range(remainder(oh, p.step), p.KH, p.step):
            down = quotient(oh - kh, p.step) if oh >= kh else -1
            if 0 <= down < p.IH:
                x = p.x.ptr + n * p.nbn + c * p.nbc + down * p.nbh
                clear_f32(to, 0, p.J)
                inside = min(p.IW, p.P - p.J)
                copy_bytes(x, to + 4 * p.J, 4 * inside)
                clear_f32(to, p.J + inside, p.P)
            else:
                clear_f32(to, 0, p.P)
            to += 4 * p.P


@inline
def store_apart(p: Record, first: Any, second: Any, to: Int, n: Int, spare: Int) -> None:
    """n of 32 values, a stride apart."""
    store_f32x16(spare, first)
    store_f32x16(spare + 64, second)
    for i in range(min(n, _COLUMNS)):
        store_f32(to + 4 * i * p.step, load_f32(spare + 4 * i))


def _transposed(type: str, read: Inline) -> None:
    size = _ELEMENT_BYTES[type]

    @kernel(
        "conv_transpose_2d",
        (type, "f32"),
        args=ARGS,
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"conv_transpose_{type}",
        also=[("conv_transpose_1d", (type, "f32"))],
    )
    def conv_transpose(p: Record, ith: Int, nth: Int) -> None:
        lines = p.scratch + ith * p.stride
        weights = lines + 4 * p.IC * quotient(p.KH + p.step - 1, p.step) * p.P
        tiles = quotient(p.OC + _TILE - 1, _TILE)
        parts = max(1, min(tiles, quotient(4 * nth, p.N * p.OH)))  # where there are few lines
        tasks = p.N * p.OH * parts
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            line = quotient(task, parts)
            part = task - line * parts
            n = quotient(line, p.OH)
            oh = line - n * p.OH
            copy_lines(p, n, oh, lines)
            for tile in range(share(tiles, part, parts), share(tiles, part + 1, parts)):
                c = tile * _TILE
                for j in range(_TILE):
                    for i in range(p.IC):
                        at = (i * p.OC + min(c + j, p.OC - 1)) * p.K
                        read(p.kernel.ptr + at * size, weights + 4 * (j * p.IC + i) * p.K, p.K)
                y = p.y.ptr + 4 * (((n * p.OC + c) * p.OH + oh) * p.OW)
                for phase in range(min(p.step, p.OW)):
                    left = quotient(p.OW - phase + p.step - 1, p.step)
                    for q in range(0, left, _COLUMNS):
                        to = y + 4 * (phase + q * p.step)
                        tile_of_phase(p, lines, weights, oh, phase, q, to, left - q, p.OC - c)

    @inline
    def tile_of_phase(
        p: Record,
        lines: Int,
        weights: Int,
        oh: Int,
        phase: Int,
        q: Int,
        to: Int,
        n_left: Int,
        n: Int,
    ) -> None:
        """4 channels by 32 elements; n channels are left, and n_left elements."""
        y00, y01, y10, y11 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        y20, y21, y30, y31 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        channel = 4 * p.IC * p.K
        line = lines + 4 * (p.J + q)
        for i in range(p.IC):
            for kh in range(remainder(oh, p.step), p.KH, p.step):
                w = weights + 4 * (i * p.K + kh * p.KW)
                x = line
                for kw in range(phase, p.KW, p.step):
                    x0, x1 = load_f32x16(x), load_f32x16(x + 64)
                    v = splat_f32x16(load_f32(w + 4 * kw))
                    y00, y01 = fma(x0, v, y00), fma(x1, v, y01)
                    v = splat_f32x16(load_f32(w + channel + 4 * kw))
                    y10, y11 = fma(x0, v, y10), fma(x1, v, y11)
                    v = splat_f32x16(load_f32(w + 2 * channel + 4 * kw))
                    y20, y21 = fma(x0, v, y20), fma(x1, v, y21)
                    v = splat_f32x16(load_f32(w + 3 * channel + 4 * kw))
                    y30, y31 = fma(x0, v, y30), fma(x1, v, y31)
                    x -= 4
                line += 4 * p.P
        spare = weights + 4 * channel
        plane = 4 * p.OH * p.OW
        store_apart(p, y00, y01, to, n_left, spare)
        if n > 1:
            store_apart(p, y10, y11, to + plane, n_left, spare)
        if n > 2:
            store_apart(p, y20, y21, to + 2 * plane, n_left, spare)
        if n > 3:
            store_apart(p, y30, y31, to + 3 * plane, n_left, spare)


for _type in _ELEMENT_BYTES:
    _transposed(_type, READERS[_type])
