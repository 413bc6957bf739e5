"""Orders within rows.

An element becomes one i64: its value as an integer that grows in the requested order, above its
index. Sorting these need not be stable, since no two are equal:

    key      bits of the f32, those of negative numbers inverted; NaN the largest of all
    packed   key << 32 | index
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Int, Record, inline, kernel
from ggmlpy.backends.cpu.kernels.types import rows_ok
from ggmlpy.backends.cpu.rows import n_rows, row_ptr, share
from ggmlpy.backends.cpu.simd.convert import bits_from_f32
from ggmlpy.backends.cpu.simd.memory import load_f32, load_i64, store_i32, store_i64

FIELDS = [("y", TENSOR), ("x", TENSOR), ("scratch", "i8")]
ARGS = np.dtype([*FIELDS, ("order", "i4")], align=True)
TOP_ARGS = np.dtype([*FIELDS, ("k", "i8")], align=True)

_RUN = 16  # elements that insertion sorts faster than merging


def _rows(node: Any) -> bool:
    return rows_ok(node.src[0])


@inline
def pack(x: Int, i: Int, descending: Int) -> Int:
    """Element i of the row at x with its index. Zeros of both signs are equal."""
    value = load_f32(x + 4 * i) + np.float32(0)
    key: Int = 0x7FFFFFFF
    if value == value:
        key = np.int64(bits_from_f32(value))
        if key < 0:
            key ^= 0x7FFFFFFF
        if descending != 0:
            key = ~key
    return (key << 32) | i


@inline
def sort_run(at: Int, n: Int) -> None:
    """Insertion sort of n i64."""
    for i in range(1, n):
        value = load_i64(at + 8 * i)
        j = i
        while j > 0 and load_i64(at + 8 * (j - 1)) > value:
            store_i64(at + 8 * j, load_i64(at + 8 * (j - 1)))
            j -= 1
        store_i64(at + 8 * j, value)


@inline
def merge(source: Int, target: Int, start: Int, middle: Int, end: Int) -> None:
    """Two sorted runs of i64, start .. middle and middle .. end, into one."""
    i, j = start, middle
    for at in range(start, end):
        take_left = i < middle
        if take_left and j < end:
            take_left = load_i64(source + 8 * i) < load_i64(source + 8 * j)
        if take_left:
            store_i64(target + 8 * at, load_i64(source + 8 * i))
            i += 1
        else:
            store_i64(target + 8 * at, load_i64(source + 8 * j))
            j += 1


@kernel(
    "argsort",
    ("f32",),
    args=ARGS,
    requires=_rows,
    scratch_bytes=lambda node, n_threads: 16 * node.ne[0] * n_threads,
)
def argsort_f32(p: Record, ith: Int, nth: Int) -> None:
    """Runs of 16, then merged pairwise, alternating between the halves of scratch memory."""
    n = p.x.ne0
    rows = n_rows(p.x)
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        y = row_ptr(p.y, row)
        source = p.scratch + 16 * n * ith
        target = source + 8 * n
        for i in range(n):
            store_i64(source + 8 * i, pack(x, i, p.order))
        for start in range(0, n, _RUN):
            sort_run(source + 8 * start, min(_RUN, n - start))
        width = _RUN
        while width < n:
            for start in range(0, n, 2 * width):
                merge(source, target, start, min(start + width, n), min(start + 2 * width, n))
            source, target = target, source
            width *= 2
        for i in range(n):
            store_i32(y + 4 * i, load_i64(source + 8 * i) & 0x7FFFFFFF)


@inline
def sift_down(heap: Int, start: Int, n: Int) -> None:
    """Restores a heap with the largest i64 on top where only the one at `start` may be too low."""
    value = load_i64(heap + 8 * start)
    at = start
    child = 2 * at + 1
    while child < n:
        if child + 1 < n and load_i64(heap + 8 * (child + 1)) > load_i64(heap + 8 * child):
            child += 1
        if load_i64(heap + 8 * child) <= value:
            break
        store_i64(heap + 8 * at, load_i64(heap + 8 * child))
        at = child
        child = 2 * at + 1
    store_i64(heap + 8 * at, value)


@inline
def make_heap(heap: Int, n: Int) -> None:
    """Brings n i64 into the order of a heap with the largest on top."""
    for i in range(n):
        sift_down(heap, n - 1 - i, n)


@inline
def sort_heap(heap: Int, n: Int) -> None:
    """Sorts a heap of n i64, the smallest first."""
    for i in range(n):
        left = n - 1 - i
        largest = load_i64(heap)
        store_i64(heap, load_i64(heap + 8 * left))
        sift_down(heap, 0, left)
        store_i64(heap + 8 * left, largest)


@kernel(
    "top_k",
    ("f32",),
    args=TOP_ARGS,
    requires=_rows,
    scratch_bytes=lambda node, n_threads: 8 * node.ne[0] * n_threads,
)
def top_k_f32(p: Record, ith: Int, nth: Int) -> None:
    """A heap of the k best so far, with the worst of them on top; then sorted from its end."""
    rows = n_rows(p.x)
    heap = p.scratch + 8 * p.k * ith
    for row in range(share(rows, ith, nth), share(rows, ith + 1, nth)):
        x = row_ptr(p.x, row)
        y = row_ptr(p.y, row)
        for i in range(p.k):
            store_i64(heap + 8 * i, pack(x, i, 1))
        make_heap(heap, p.k)
        for i in range(p.k, p.x.ne0):
            candidate = pack(x, i, 1)
            if candidate < load_i64(heap):
                store_i64(heap, candidate)
                sift_down(heap, 0, p.k)
        sort_heap(heap, p.k)
        for i in range(p.k):
            store_i32(y + 4 * i, load_i64(heap + 8 * i) & 0x7FFFFFFF)
