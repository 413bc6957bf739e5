"""Windows as rows, and back: im2col in one to three dimensions, im2col_back, col2im_1d."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.segments import n_segments
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import quotient
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.memory import (
    load_bf16,
    load_f16,
    load_f16x16,
    load_f16x16_part,
    load_f32,
    load_f32x16,
    load_f32x16_part,
    store_bf16,
    store_f16,
    store_f16x16,
    store_f16x16_part,
    store_f32,
    store_f32x16,
    store_f32x16_part,
)

# Of a convolution: channels; sizes of input, kernel and result; strides, paddings, dilations; and
# the input's bytes from one volume, channel, plane and line to the next.
GEOMETRY = (
    *("IC", "ID", "IH", "IW", "KD", "KH", "KW", "OD", "OH", "OW"),
    *(f"{name}{axis}" for name in "spd" for axis in range(3)),
    *("nbn", "nbc", "nbd", "nbh"),
)
ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), *((n, "i8") for n in GEOMETRY)], align=True)
BACK_ARGS = np.dtype([("y", TENSOR), ("grad", TENSOR), *((n, "i8") for n in GEOMETRY)], align=True)
SIGNAL_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), ("s0", "i8"), ("p0", "i8"), ("K", "i8")], align=True
)

_LOADS = {"f32": (load_f32, 4), "f16": (load_f16, 2), "bf16": (load_bf16, 2)}
_STORES = {"f32": (store_f32, 4), "f16": (store_f16, 2), "bf16": (store_bf16, 2)}
_LOADS_16 = {"f32": (load_f32x16, load_f32x16_part), "f16": (load_f16x16, load_f16x16_part)}
_STORES_16 = {
    "f32": (store_f32x16, store_f32x16_part),
    "f16": (store_f16x16, store_f16x16_part),
}
_WINDOWS = 16  # of a task


def geometry(op: Any, kernel: Any, x: Any, y: Any) -> dict[str, int]:
    """The numbers of GEOMETRY, of a convolution in one, two or three dimensions.

    `x` is the input (in im2col_back the result), `y` the result (of im2col, its windows).
    """
    found = {f"{name}{axis}": getattr(op, f"{name}{axis}", 1) for name in "sd" for axis in range(3)}
    found |= {f"p{axis}": getattr(op, f"p{axis}", 0) for axis in range(3)}
    names = ("IC", "ID", "IH", "IW", "KD", "KH", "KW", "OD", "OH", "OW", "nbn", "nbc", "nbd", "nbh")
    n_channels = getattr(op, "IC", None) or getattr(op, "c", None)
    if n_channels is not None:
        in_shape = n_channels, x.ne[2], x.ne[1], x.ne[0]
        out_d = y.ne[3] // (x.ne[3] // n_channels) if op.name == "im2col_3d" else y.ne[2]
        out = (out_d, *((y.ne[2], y.ne[1]) if op.name == "im2col_3d" else (y.ne[1], y.ne[0])))
        kernel_shape = kernel.ne[2], kernel.ne[1], kernel.ne[0]
        strides = n_channels * x.nb[3], x.nb[3], x.nb[2], x.nb[1]
    elif getattr(op, "is_2D", True):
        in_shape = x.ne[2], 1, x.ne[1], x.ne[0]
        first = 1 if op.name.startswith("im2col") else 0
        out = 1, y.ne[first + 1], y.ne[first]
        kernel_shape = 1, kernel.ne[1], kernel.ne[0]
        strides = x.nb[3], x.nb[2], 0, x.nb[1]
    else:
        in_shape = x.ne[1], 1, 1, x.ne[0]
        out = 1, 1, y.ne[1]
        kernel_shape = 1, 1, kernel.ne[0]
        strides = x.nb[2], x.nb[1], 0, 0
        found |= {"s1": 1, "p1": 0, "d1": 1}
    return {**found, **dict(zip(names, map(int, (*in_shape, *kernel_shape, *out, *strides))))}  # noqa: B905


def _bind(node: Any, builder: Any) -> dict[str, int]:
    kernel_, x = node.src
    return geometry(node.op, kernel_, x, node)


def _rows(node: Any) -> bool:
    return rows_ok(node.src[1])


def _im2col(source: str, target: str) -> None:
    load, x_bytes = _LOADS[source]
    store, y_bytes = _STORES[target]
    load_16, load_part = _LOADS_16[source]
    store_16, store_part = _STORES_16[target]

    def requires(node: Any) -> bool:
        return _rows(node) and bool(node.type.name == target)

    @kernel(
        "im2col",
        ("f32", source),
        args=ARGS,
        requires=requires,
        bind=_bind,
        name=f"im2col_{source}_{target}",
        also=[
            (op, (type, source))
            for op in ("im2col", "im2col_3d")
            for type in ("f32", "f16", "bf16")
            if (op, type) != ("im2col", "f32")
        ],
    )
    def im2col(p: Record, ith: Int, nth: Int) -> None:
        """Neighbouring windows of a line at a time: they read the same line of x."""
        n_blocks = n_segments(p.OW, _WINDOWS)
        tasks = quotient(n_rows(p.y), p.OW) * n_blocks
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            line = quotient(task, n_blocks)
            first = (task - line * n_blocks) * _WINDOWS
            last = min(first + _WINDOWS, p.OW)
            plane = quotient(line, p.OH)
            n = quotient(plane, p.OD)
            top = (line - plane * p.OH) * p.s1 - p.p1
            front = (plane - n * p.OD) * p.s2 - p.p2
            y = p.y.ptr + line * p.OW * p.y.nb1
            place = 0  # in a row of y
            for c in range(p.IC):
                channel = p.x.ptr + n * p.nbn + c * p.nbc
                for kd in range(p.KD):
                    i2 = front + kd * p.d2
                    for kh in range(p.KH):
                        i1 = top + kh * p.d1
                        inside = 0 <= i1 < p.IH and 0 <= i2 < p.ID
                        x = channel + i2 * p.nbd + i1 * p.nbh
                        width = p.IW if inside else 0
                        line_of_windows(p, x, width, first, last, y + place * y_bytes, place)
                        place += p.KW

    @inline
    def line_of_windows(
        p: Record, x: Int, width: Int, first: Int, last: Int, y: Int, place: Int
    ) -> None:
        """The kernel's columns of a line of `width` elements of x, of windows `first` to `last`.

        `place` is where in a row of y they belong. Where a row goes on for 16 elements, those after
        the last column are written too: what belongs there is written next.
        """
        n_columns, step, stride, apart = p.KW, p.s0, p.y.nb1, p.d0
        room = p.y.ne0 - place
        left = first * step - p.p0
        y += first * stride
        for _ in range(first, last):
            if apart == 1 and left >= 0:
                for kw in range(0, n_columns, 16):
                    at = x + x_bytes * (left + kw)
                    if width - left - kw >= 16 and room - kw >= 16:
                        store_16(y + y_bytes * kw, load_16(at))
                    else:
                        values = load_part(at, max(0, min(16, width - left - kw)))
                        store_part(y + y_bytes * kw, values, min(16, n_columns - kw))
            else:
                for kw in range(n_columns):
                    i0 = left + kw * apart
                    value = np.float32(0)
                    if 0 <= i0 < width:
                        value = load(x + x_bytes * i0)
                    store(y + y_bytes * kw, value)
            left += step
            y += stride


for _source in ("f32", "f16"):
    for _target in ("f32", "f16"):
        _im2col(_source, _target)


def _bind_back(node: Any, builder: Any) -> dict[str, int]:
    grad, kernel_ = node.src
    return geometry(node.op, kernel_, node, grad)


@kernel(
    "im2col_back",
    ("f32", "f32"),
    args=BACK_ARGS,
    bind=_bind_back,
    name="im2col_back",
    also=[("im2col_back", ("f32", type)) for type in ("f16", "bf16")],
)
def im2col_back(p: Record, ith: Int, nth: Int) -> None:
    """An element of y at a time: the sum over the kernel's places that reached it, in order."""
    tasks = quotient(n_rows(p.y), p.IH)  # channels of all images
    width = p.IC * p.KH * p.KW
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        n = quotient(task, p.IC)
        c = task - n * p.IC
        for i1 in range(p.IH):
            for i0 in range(p.IW):
                total = np.float32(0)
                for kh in range(p.KH):
                    down = i1 + p.p1 - kh * p.d1
                    oh = quotient(down, p.s1) if down >= 0 else -1
                    if oh >= 0 and oh * p.s1 == down and oh < p.OH:
                        for kw in range(p.KW):
                            right = i0 + p.p0 - kw * p.d0
                            ow = quotient(right, p.s0) if right >= 0 else -1
                            if ow >= 0 and ow * p.s0 == right and ow < p.OW:
                                window = (n * p.OH + oh) * p.OW + ow
                                at = window * width + (c * p.KH + kh) * p.KW + kw
                                total += load_f32(p.grad.ptr + 4 * at)
                store_f32(p.y.ptr + n * p.nbn + c * p.nbc + i1 * p.nbh + 4 * i0, total)


def _bind_signal(node: Any, builder: Any) -> dict[str, int]:
    return {"K": int(node.src[0].ne[0]) // node.op.oc}


def _col2im(type: str, load: Intrinsic, store: Intrinsic, size: int) -> None:
    @kernel("col2im_1d", (type,), args=SIGNAL_ARGS, bind=_bind_signal, name=f"col2im_1d_{type}")
    def col2im(p: Record, ith: Int, nth: Int) -> None:
        """An element of y at a time: the sum over the columns that reach it, in order."""
        tasks = p.y.ne0 * p.y.ne1
        for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
            c = quotient(task, p.y.ne0)
            t = task - c * p.y.ne0 + p.p0
            first = max(0, quotient(max(t - p.K, 0) + p.s0, p.s0) - 1)
            total = np.float32(0)
            for i in range(first, min(quotient(t, p.s0), p.x.ne1 - 1) + 1):
                k = t - i * p.s0
                if k < p.K:
                    total += load(row_ptr(p.x, i) + size * (c * p.K + k))
            store(row_ptr(p.y, c) + size * (t - p.p0), total)


for _type in ("f32", "f16", "bf16"):
    _col2im(_type, _LOADS[_type][0], _STORES[_type][0], _LOADS[_type][1])
