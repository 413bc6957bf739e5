"""Direct convolutions: of images and volumes, and of each channel by itself.

A thread takes a line of the result. It copies the lines of x that the line needs, padded with
zeros, to its scratch memory; with a stride, elements that are a stride apart come next to each
other. Then it computes 4 channels by 32 columns at a time in registers. Each
element is summed over channels, planes, lines and columns of the kernel, in this order.

A pass of the inner loop has 8 multiply-adds of 16 lanes for
2 loads of x and 4 broadcasts of weights.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.copy import copy_bytes
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.backends.cpu.kernels.im2col import GEOMETRY, geometry
from ggmlpy.backends.cpu.kernels.shape import clear_f32
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import fma, quotient, splat_f32x16, zero_f32x16
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.gather import gather_f16x16, gather_f32x16
from ggmlpy.backends.cpu.simd.memory import (
    load_f16,
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_i64,
    store_f32,
    store_f32x16_part,
)
from ggmlpy.graph.buffer import HostBuffer, aligned_bytes
from ggmlpy.ops.convolution import channels_first

_NUMBERS = (*GEOMETRY, "OC", "K", "P", "Q", "columns", "stride", "scratch")
ARGS = np.dtype(
    [("y", TENSOR), ("kernel", TENSOR), ("x", TENSOR), *((n, "i8") for n in _NUMBERS)], align=True
)
_TILE = 4  # channels of the result at a time
_COLUMNS = 32
_ELEMENT_BYTES = {"f32": 4, "f16": 2}


def _numbers(node: Any) -> dict[str, int]:
    """Geometry; K elements of a kernel, P of a padded line in s0 parts of Q; a thread's scratch."""
    kernel_, x = node.src
    found = geometry(node.op, kernel_, x, node)
    n_lines = found["IC"] * found["KD"] * found["KH"]
    if node.op.name == "conv_2d_dw":
        n_lines = found["KH"]
    found["K"] = n_lines * found["KW"]
    columns = -(-found["OW"] // _COLUMNS) * _COLUMNS
    reach = columns + (found["KW"] - 1) * found["d0"] // found["s0"] + 1
    found["Q"] = -(-reach // 16) * 16
    found["P"] = found["s0"] * found["Q"]
    found["OC"] = int(node.ne[2] if node.op.name == "conv_2d" else getattr(node.op, "oc", 0))
    found["stride"] = -(-4 * (n_lines * found["P"] + _TILE * found["K"]) // 64) * 64
    return found


@lru_cache(maxsize=256)
def _columns(n: int, dilation: int, step: int, part: int) -> HostBuffer:
    """For each column of the kernel the byte of a padded line at which its elements begin, i64."""
    at = np.arange(n) * dilation
    buffer = HostBuffer(aligned_bytes(8 * n))
    buffer.data.view(np.int64)[:] = 4 * (at % step * part + at // step)
    return buffer


def _bind(node: Any, builder: Any) -> dict[str, int]:
    found = _numbers(node)
    table = _columns(found["KW"], found["d0"], found["s0"], found["Q"])
    builder.keep.append(table)
    return {**found, "columns": table.address}


def _scratch_bytes(node: Any, n_threads: int) -> int:
    return n_threads * _numbers(node)["stride"]


@inline
def copy_line(p: Record, channel: Int, i2: Int, i1: Int, to: Int) -> None:
    """Line i1 of plane i2 of a channel, between zeros; zeros alone outside.

    Element b of the padded line comes to place b // s0 of part b % s0.
    """
    if 0 <= i1 < p.IH and 0 <= i2 < p.ID:
        x = channel + i2 * p.nbd + i1 * p.nbh
        if p.s0 == 1:
            before = min(p.p0, p.P)
            n = min(p.IW, p.P - before)
            clear_f32(to, 0, before)
            copy_bytes(x, to + 4 * before, 4 * n)
            clear_f32(to, before + n, p.P)
        else:
            for part in range(p.s0):
                first = part - p.p0  # of x, at place 0
                begin = min(p.Q, quotient(p.s0 - 1 - first, p.s0)) if first < 0 else 0
                end = begin
                if first < p.IW:
                    end = max(begin, min(p.Q, quotient(p.IW - first + p.s0 - 1, p.s0)))
                line = to + 4 * part * p.Q
                clear_f32(line, 0, begin)
                for i in range(begin, end):
                    store_f32(line + 4 * i, load_f32(x + 4 * (first + i * p.s0)))
                clear_f32(line, end, p.Q)
    else:
        clear_f32(to, 0, p.P)


@inline
def copy_lines(p: Record, n: Int, front: Int, top: Int, to: Int) -> None:
    """The lines of all channels that a line of the result needs."""
    for c in range(p.IC):
        channel = p.x.ptr + n * p.nbn + c * p.nbc
        for kd in range(p.KD):
            for kh in range(p.KH):
                copy_line(p, channel, front + kd * p.d2, top + kh * p.d1, to)
                to += 4 * p.P


def _convolution(type: str, read: Inline) -> None:
    size = _ELEMENT_BYTES[type]

    @kernel(
        "conv_2d",
        (type, "f32"),
        args=ARGS,
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"convolution_{type}",
        also=[("conv_3d", (type, "f32"))],
    )
    def convolution(p: Record, ith: Int, nth: Int) -> None:
        lines = p.scratch + ith * p.stride
        weights = lines + 4 * p.IC * p.KD * p.KH * p.P
        tiles = quotient(p.OC + _TILE - 1, _TILE)
        n_lines = quotient(n_rows(p.y), p.OC)  # of all images or volumes, of one channel
        parts = max(1, min(tiles, quotient(4 * nth, n_lines)))  # where there are few lines
        tasks = n_lines * parts
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            line = quotient(task, parts)
            part = task - line * parts
            plane = quotient(line, p.OH)
            oh = line - plane * p.OH
            n = quotient(plane, p.OD)
            od = plane - n * p.OD
            copy_lines(p, n, od * p.s2 - p.p2, oh * p.s1 - p.p1, lines)
            y = p.y.ptr + n * p.OC * p.OD * p.OH * p.OW * 4 + (od * p.OH + oh) * p.OW * 4
            for tile in range(share(tiles, part, parts), share(tiles, part + 1, parts)):
                c = tile * _TILE
                for j in range(_TILE):
                    source = p.kernel.ptr + min(c + j, p.OC - 1) * p.K * size
                    read(source, weights + 4 * j * p.K, p.K)
                to = y + c * p.OD * p.OH * p.OW * 4
                for ow in range(0, p.OW, _COLUMNS):
                    tile_of_columns(p, lines, weights, ow, to, p.OC - c)

    @inline
    def tile_of_columns(p: Record, lines: Int, weights: Int, ow: Int, to: Int, n: Int) -> None:
        """4 channels by 32 columns; n channels are left."""
        y00, y01, y10, y11 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        y20, y21, y30, y31 = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
        w0, w1, w2, w3 = weights, weights + 4 * p.K, weights + 8 * p.K, weights + 12 * p.K
        for line in range(p.IC * p.KD * p.KH):
            start = lines + 4 * (line * p.P + ow)
            for kw in range(p.KW):
                x = start + load_i64(p.columns + 8 * kw)
                x0, x1 = load_f32x16(x), load_f32x16(x + 64)
                w = splat_f32x16(load_f32(w0))
                y00, y01 = fma(x0, w, y00), fma(x1, w, y01)
                w = splat_f32x16(load_f32(w1))
                y10, y11 = fma(x0, w, y10), fma(x1, w, y11)
                w = splat_f32x16(load_f32(w2))
                y20, y21 = fma(x0, w, y20), fma(x1, w, y21)
                w = splat_f32x16(load_f32(w3))
                y30, y31 = fma(x0, w, y30), fma(x1, w, y31)
                w0, w1, w2, w3 = w0 + 4, w1 + 4, w2 + 4, w3 + 4
        channel = p.OD * p.OH * p.OW * 4
        store_columns(p, y00, y01, ow, to)
        if n > 1:
            store_columns(p, y10, y11, ow, to + channel)
        if n > 2:
            store_columns(p, y20, y21, ow, to + 2 * channel)
        if n > 3:
            store_columns(p, y30, y31, ow, to + 3 * channel)


@inline
def store_columns(p: Record, first: Any, second: Any, ow: Int, to: Int) -> None:
    """32 columns, up to the end of the line."""
    store_f32x16_part(to + 4 * ow, first, min(16, p.OW - ow))
    if p.OW - ow > 16:
        store_f32x16_part(to + 4 * ow + 64, second, min(16, p.OW - ow - 16))


for _type in _ELEMENT_BYTES:
    _convolution(_type, READERS[_type])


def _lines_of_channels(node: Any) -> bool:
    return bool(node.src[1].contiguous)


def _channels_of_pixels(node: Any) -> bool:
    return channels_first(node.src[1].spec)


def _of_channels(type: str, read: Inline, load: Intrinsic, gather: Intrinsic) -> None:
    size = _ELEMENT_BYTES[type]

    @kernel(
        "conv_2d_dw",
        (type, "f32"),
        args=ARGS,
        requires=_lines_of_channels,
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"conv_2d_dw_{type}",
    )
    def by_lines(p: Record, ith: Int, nth: Int) -> None:
        """A line of a channel at a time, 16 columns."""
        lines = p.scratch + ith * p.stride
        weights = lines + 4 * p.KH * p.P
        rows = n_rows(p.y)
        for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
            plane = quotient(row, p.OH)
            n = quotient(plane, p.IC)
            c = plane - n * p.IC
            read(p.kernel.ptr + c * p.K * size, weights, p.K)
            top = (row - plane * p.OH) * p.s1 - p.p1
            for kh in range(p.KH):
                channel = p.x.ptr + n * p.nbn + c * p.nbc
                copy_line(p, channel, 0, top + kh * p.d1, lines + 4 * kh * p.P)
            y = row_ptr(p.y, row)
            for ow in range(0, p.OW, 16):
                total = zero_f32x16()
                for kh in range(p.KH):
                    line = lines + 4 * (kh * p.P + ow)
                    for kw in range(p.KW):
                        w = splat_f32x16(load_f32(weights + 4 * (kh * p.KW + kw)))
                        x = load_f32x16(line + load_i64(p.columns + 8 * kw))
                        total = fma(x, w, total)
                store_f32x16_part(y + 4 * ow, total, min(16, p.OW - ow))

    @kernel(
        "conv_2d_dw",
        (type, "f32"),
        args=ARGS,
        requires=_channels_of_pixels,
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"conv_2d_dw_{type}_channels",
    )
    def by_pixels(p: Record, ith: Int, nth: Int) -> None:
        """A pixel at a time, 16 channels; the kernel's places outside of x are left out."""
        tasks = p.y.ne3 * p.OH
        stride = p.kernel.nb3
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            n = quotient(task, p.OH)
            oh = task - n * p.OH
            for ow in range(p.OW):
                y = p.y.ptr + n * p.y.nb3 + oh * p.y.nb1 + ow * p.y.nb0
                image = p.x.ptr + n * p.x.nb3
                whole = p.IC & -16
                for c in range(0, whole, 16):
                    total = zero_f32x16()
                    for kh in range(p.KH):
                        i1 = oh * p.s1 + kh * p.d1 - p.p1
                        for kw in range(p.KW):
                            i0 = ow * p.s0 + kw * p.d0 - p.p0
                            if 0 <= i1 < p.IH and 0 <= i0 < p.IW:
                                at = p.kernel.ptr + kh * p.kernel.nb1 + kw * p.kernel.nb0
                                x = image + i1 * p.x.nb1 + i0 * p.x.nb0
                                w = gather(at + c * stride, stride)
                                total = fma(load_f32x16_part(x + 4 * c, 16), w, total)
                    store_f32x16_part(y + 4 * c, total, 16)
                for c in range(whole, p.IC):
                    total_1 = np.float32(0)
                    for kh in range(p.KH):
                        i1 = oh * p.s1 + kh * p.d1 - p.p1
                        for kw in range(p.KW):
                            i0 = ow * p.s0 + kw * p.d0 - p.p0
                            if 0 <= i1 < p.IH and 0 <= i0 < p.IW:
                                at = p.kernel.ptr + kh * p.kernel.nb1 + kw * p.kernel.nb0
                                x = image + i1 * p.x.nb1 + i0 * p.x.nb0
                                total_1 = fma(load_f32(x + 4 * c), load(at + c * stride), total_1)
                    store_f32(y + 4 * c, total_1)


_of_channels("f32", READERS["f32"], load_f32, gather_f32x16)
_of_channels("f16", READERS["f16"], load_f16, gather_f16x16)
