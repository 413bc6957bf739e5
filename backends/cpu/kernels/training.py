"""Gradients, the loss, and steps of optimisers.

Rows are shared between threads. Sums along a row are those of lanes, added up as a tree; the loss
adds up the sums of rows in their order, in whichever thread finishes last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Record, inline, kernel, report
from ggmlpy.backends.cpu.kernels import types
from ggmlpy.backends.cpu.kernels.norm import sum_of_squares
from ggmlpy.backends.cpu.kernels.rows import first_bad_id
from ggmlpy.backends.cpu.kernels.segments import SEGMENT, n_segments
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.arith import (
    equal,
    fma,
    iota_i32x16,
    less,
    maximum,
    quotient,
    select,
    splat_f32x16,
    splat_i32x16,
    sqrt,
    zero_f32x16,
)
from ggmlpy.backends.cpu.simd.atomic import atomic_add_i64, atomic_store_i64
from ggmlpy.backends.cpu.simd.core import Intrinsic
from ggmlpy.backends.cpu.simd.math import exp, log, sigmoid
from ggmlpy.backends.cpu.simd.memory import (
    load_f16x16_part,
    load_f32,
    load_f32x16_part,
    load_f64,
    load_i32,
    store_f32,
    store_f32x16_part,
    store_f64,
)
from ggmlpy.backends.cpu.simd.reduce import max_lanes, sum_lanes

_NEVER = float("-inf")
_COLUMNS = 64  # of get_rows_back: a thread's share is whole cache lines
_I32 = types.I32


def _args(*names: str, **numbers: str) -> np.dtype:
    tensors = [(name, TENSOR) for name in ("y", *names)]
    return np.dtype([*tensors, *numbers.items()], align=True)


def _rows(node: Any) -> bool:
    return all(types.rows_ok(tensor) for tensor in (node, *node.src))


# --- gradients ------------------------------------------------------------------------------------


@kernel("silu_back", ("f32", "f32"), args=_args("grad", "x"), requires=_rows)
def silu_back_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = grad s (1 + x (1 - s)), s = sigmoid(x), by segments of rows."""
    per_row = n_segments(p.x.ne0, SEGMENT)
    tasks = n_rows(p.x) * per_row
    for task in range(share(tasks, ith, nth), share(tasks, ith + 1, nth)):
        row = quotient(task, per_row)
        start = (task - row * per_row) * SEGMENT
        x, grad, y = row_ptr(p.x, row), row_ptr(p.grad, row), row_ptr(p.y, row)
        for i in range(start, min(start + SEGMENT, p.x.ne0), 16):
            m = min(16, p.x.ne0 - i)
            v = load_f32x16_part(x + 4 * i, m)
            s = sigmoid(v)
            slope = s * fma(v, 1.0 - s, splat_f32x16(1.0))
            store_f32x16_part(y + 4 * i, load_f32x16_part(grad + 4 * i, m) * slope, m)


@inline
def dot_of_rows(a: Int, b: Int, n: Int) -> Any:
    """The sum of a[i] b[i]. Lane i adds up elements i, i + 16, ...; then a tree."""
    total = zero_f32x16()
    for i in range(0, n, 16):
        m = min(16, n - i)
        total = fma(load_f32x16_part(a + 4 * i, m), load_f32x16_part(b + 4 * i, m), total)
    return sum_lanes(total)


@kernel("rms_norm_back", ("f32", "f32"), args=_args("grad", "x", eps="f4"), requires=_rows)
def rms_norm_back_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = (grad - x dot(x, grad) / (sum(x^2) + n eps)) / sqrt(mean(x^2) + eps)."""
    n = p.x.ne0
    count = np.float32(n)
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x, grad, y = row_ptr(p.x, row), row_ptr(p.grad, row), row_ptr(p.y, row)
        squares = sum_of_squares(x, n, np.float32(0))
        minus = np.float32(0) - dot_of_rows(x, grad, n) / (squares + count * p.eps)
        factor = np.float32(1) / sqrt(squares / count + p.eps)
        for i in range(0, n, 16):
            m = min(16, n - i)
            g = load_f32x16_part(grad + 4 * i, m)
            v = fma(load_f32x16_part(x + 4 * i, m), splat_f32x16(minus), g)
            store_f32x16_part(y + 4 * i, v * factor, m)


@kernel("soft_max_back", ("f32", "f32"), args=_args("grad", "weights", scale="f4"), requires=_rows)
def soft_max_back_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = scale weights (grad - dot(weights, grad))."""
    n = p.grad.ne0
    rows = n_rows(p.grad)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        grad, weights, y = row_ptr(p.grad, row), row_ptr(p.weights, row), row_ptr(p.y, row)
        dot = dot_of_rows(weights, grad, n)
        for i in range(0, n, 16):
            m = min(16, n - i)
            v = (load_f32x16_part(grad + 4 * i, m) - dot) * p.scale
            store_f32x16_part(y + 4 * i, load_f32x16_part(weights + 4 * i, m) * v, m)


def _get_rows_back(type: str, size: int, load_part: Intrinsic) -> None:
    @kernel(
        "get_rows_back",
        (type, "i32"),
        args=_args("grad", "ids"),
        name=f"get_rows_back_{type}",
    )
    def get_rows_back(p: Record, ith: Int, nth: Int) -> None:
        """A share of the columns for each thread, which adds up rows of an id in their order;
        nothing is written if any id is out of range."""
        bad = first_bad_id(p.ids, _I32, p.y.ne1)
        if bad != 0:
            report(p, load_i32(bad))
            return
        groups = n_segments(p.y.ne0, _COLUMNS)
        begin = share(groups, ith, nth) * _COLUMNS
        end = min(p.y.ne0, share(groups, ith + 1, nth) * _COLUMNS)
        for row in range(p.y.ne1):
            for i in range(begin, end, 16):
                at = p.y.ptr + row * p.y.nb1 + 4 * i
                store_f32x16_part(at, zero_f32x16(), min(16, end - i))
        for row in range(p.grad.ne1):
            grad = p.grad.ptr + row * p.grad.nb1
            y = p.y.ptr + load_i32(p.ids.ptr + row * p.ids.nb0) * p.y.nb1
            for i in range(begin, end, 16):
                m = min(16, end - i)
                total = load_f32x16_part(y + 4 * i, m) + load_part(grad + size * i, m)
                store_f32x16_part(y + 4 * i, total, m)


_get_rows_back("f32", 4, load_f32x16_part)
_get_rows_back("f16", 2, load_f16x16_part)


# --- the loss -------------------------------------------------------------------------------------


@inline
def largest_of_row(x: Int, n: Int) -> Any:
    """The largest element; 0 if all are -inf, as a difference to it must not be NaN."""
    largest = splat_f32x16(_NEVER)
    for i in range(0, n, 16):
        m = min(16, n - i)
        there = less(iota_i32x16(), splat_i32x16(m))
        largest = maximum(select(there, load_f32x16_part(x + 4 * i, m), _NEVER), largest)
    found = max_lanes(largest)
    return np.float32(0) if found == _NEVER else found


@inline
def exponentials_of_row(x: Int, y: Int, n: Int, minus: Any) -> Any:
    """The sum of exp(x - minus); the terms are stored at y, unless that is 0."""
    total = zero_f32x16()
    for i in range(0, n, 16):
        m = min(16, n - i)
        e = exp(load_f32x16_part(x + 4 * i, m) - minus)
        if y != 0:
            store_f32x16_part(y + 4 * i, e, m)
        total = total + select(less(iota_i32x16(), splat_i32x16(m)), e, 0.0)
    return sum_lanes(total)


@inline
def cross_entropy_of_row(logits: Int, labels: Int, n: Int) -> Any:
    """The sum of labels times the logarithm of softmax; a label of 0 counts as nothing."""
    largest = largest_of_row(logits, n)
    log_total = log(exponentials_of_row(logits, 0, n, largest))
    total = zero_f32x16()
    for i in range(0, n, 16):
        m = min(16, n - i)
        label = load_f32x16_part(labels + 4 * i, m)
        term = label * (load_f32x16_part(logits + 4 * i, m) - largest - log_total)
        total = total + select(equal(label, 0.0), 0.0, term)
    return np.float64(sum_lanes(total))


def _bind_loss(node: Any, builder: Any) -> dict[str, int]:
    return {"finished": builder.counters(1)}


def _loss_bytes(node: Any, n_threads: int) -> int:
    """A sum for each row."""
    return 8 * int(node.src[0].spec.n_rows)


@kernel(
    "cross_entropy_loss",
    ("f32", "f32"),
    args=_args("logits", "labels", scratch="i8", finished="i8"),
    requires=_rows,
    bind=_bind_loss,
    scratch_bytes=_loss_bytes,
)
def cross_entropy_loss_f32(p: Record, ith: Int, nth: Int) -> None:
    """Minus the mean of the rows' sums."""
    rows = n_rows(p.logits)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        logits, labels = row_ptr(p.logits, row), row_ptr(p.labels, row)
        store_f64(p.scratch + 8 * row, cross_entropy_of_row(logits, labels, p.logits.ne0))
    if atomic_add_i64(p.finished, 1) == nth - 1:
        atomic_store_i64(p.finished, 0)
        total = np.float64(0)
        for row in range(rows):
            total -= load_f64(p.scratch + 8 * row)
        store_f32(p.y.ptr, np.float32(total / np.float64(rows)))


@kernel(
    "cross_entropy_loss_back",
    ("f32", "f32", "f32"),
    args=_args("grad", "logits", "labels"),
    requires=_rows,
)
def cross_entropy_loss_back_f32(p: Record, ith: Int, nth: Int) -> None:
    """y = (softmax(logits) - labels) grad / rows."""
    n = p.logits.ne0
    rows = n_rows(p.logits)
    factor = load_f32(p.grad.ptr) / np.float32(rows)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        logits, labels, y = row_ptr(p.logits, row), row_ptr(p.labels, row), row_ptr(p.y, row)
        total = exponentials_of_row(logits, y, n, largest_of_row(logits, n))
        share_of_one = np.float32(1) / total
        for i in range(0, n, 16):
            m = min(16, n - i)
            minus = load_f32x16_part(labels + 4 * i, m) * -1.0
            v = fma(load_f32x16_part(y + 4 * i, m), splat_f32x16(share_of_one), minus)
            store_f32x16_part(y + 4 * i, v * factor, m)


# --- optimisers -----------------------------------------------------------------------------------


def _moment(name: str, updated: str, beta_at: int, of_grad: Inline) -> None:
    """The kernel of a running mean, whose factor is parameter number `beta_at`."""

    def requires(node: Any) -> bool:
        return bool(node.op.updated.value == updated)

    @kernel(
        "opt_step_adamw",
        ("f32", "f32", "f32"),
        args=_args("x", "grad", "params"),
        requires=requires,
        name=name,
    )
    def moment(p: Record, ith: Int, nth: Int) -> None:
        """x = x beta + of_grad(grad) (1 - beta): tensors are contiguous."""
        beta = load_f32(p.params.ptr + 4 * beta_at)
        rest = np.float32(1) - beta
        n = n_rows(p.x) * p.x.ne0
        tasks = n_segments(n, SEGMENT)
        begin, end = share(tasks, ith, nth) * SEGMENT, share(tasks, ith + 1, nth) * SEGMENT
        for i in range(begin, min(end, n), 16):
            m = min(16, n - i)
            g = of_grad(load_f32x16_part(p.grad.ptr + 4 * i, m)) * rest
            v = fma(load_f32x16_part(p.x.ptr + 4 * i, m), splat_f32x16(beta), g)
            store_f32x16_part(p.y.ptr + 4 * i, v, m)


@inline
def itself(x: Any) -> Any:
    return x


@inline
def squared(x: Any) -> Any:
    return x * x


_moment("opt_step_adamw_m", "m", 1, itself)
_moment("opt_step_adamw_v", "v", 2, squared)


@kernel(
    "opt_step_adamw",
    ("f32", "f32", "f32", "f32"),
    args=_args("w", "m", "v", "params"),
    name="opt_step_adamw_w",
)
def opt_step_adamw_w(p: Record, ith: Int, nth: Int) -> None:
    """w = w (1 - alpha wd) - alpha (m beta1h) / (sqrt(v beta2h) + eps): tensors are contiguous."""
    alpha, eps = load_f32(p.params.ptr), load_f32(p.params.ptr + 12)
    keep = np.float32(1) - alpha * load_f32(p.params.ptr + 16)
    beta1h, beta2h = load_f32(p.params.ptr + 20), load_f32(p.params.ptr + 24)
    n = n_rows(p.w) * p.w.ne0
    tasks = n_segments(n, SEGMENT)
    begin, end = share(tasks, ith, nth) * SEGMENT, share(tasks, ith + 1, nth) * SEGMENT
    for i in range(begin, min(end, n), 16):
        count = min(16, n - i)
        root = sqrt(load_f32x16_part(p.v.ptr + 4 * i, count) * beta2h) + eps
        step = load_f32x16_part(p.m.ptr + 4 * i, count) * beta1h * alpha / root
        w = fma(load_f32x16_part(p.w.ptr + 4 * i, count), splat_f32x16(keep), step * -1.0)
        store_f32x16_part(p.y.ptr + 4 * i, w, count)


@kernel("opt_step_sgd", ("f32", "f32", "f32"), args=_args("w", "grad", "params"))
def opt_step_sgd_f32(p: Record, ith: Int, nth: Int) -> None:
    """w = w (1 - alpha wd) - alpha grad: tensors are contiguous."""
    alpha = load_f32(p.params.ptr)
    keep = np.float32(1) - alpha * load_f32(p.params.ptr + 4)
    n = n_rows(p.w) * p.w.ne0
    tasks = n_segments(n, SEGMENT)
    begin, end = share(tasks, ith, nth) * SEGMENT, share(tasks, ith + 1, nth) * SEGMENT
    for i in range(begin, min(end, n), 16):
        m = min(16, n - i)
        step = load_f32x16_part(p.grad.ptr + 4 * i, m) * (np.float32(0) - alpha)
        w = fma(load_f32x16_part(p.w.ptr + 4 * i, m), splat_f32x16(keep), step)
        store_f32x16_part(p.y.ptr + 4 * i, w, m)
