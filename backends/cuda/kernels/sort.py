"""Orders within rows: argsort and top_k. `sort.cu` says which kernels serve which rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

_NUMBERS = (
    "k",
    "descending",
    "size",
    "n_chunks",
    "chunk",
    "n_tiles",
    "width",
    "is_last",
    "first_row",
)
ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("x", TENSOR),
        *((name, SPAN) for name in ("parts", "source", "target")),
        *((name, "i4") for name in _NUMBERS),
    ],
    align=True,
)
SORT_ROWS = Form("sort.cu", "sort_rows")
TOP_CHUNKS = Form("sort.cu", "top_chunks")
TOP_OF_PARTS = Form("sort.cu", "top_of_parts")
SORT_CHUNKS = Form("sort.cu", "sort_chunks")
MERGE_RUNS = Form("sort.cu", "merge_runs")
FORMS = (SORT_ROWS, TOP_CHUNKS, TOP_OF_PARTS, SORT_CHUNKS, MERGE_RUNS)

_SORTED = 2048  # keys that a block sorts
_SORT_BLOCK = 512
_MERGE_BLOCK = 256
_MOST_SELECTED = 1024
_CHUNK = 8192  # of a row, for top_k: a vocabulary of 128 K is the work of 16 blocks
_SCRATCH_BYTES = 64 << 20  # for keys of rows that are merged: more rows take turns
_UNUSED: dict[str, Any] = dict.fromkeys(_NUMBERS, 0)


def _rows(step: Step) -> bool:
    return all(rows_ok(tensor) for tensor in step.tensors)


@kernel("argsort", ("f32",), forms=FORMS, requires=_rows)
def argsort(w: Work) -> Iterator[Launch]:
    n = int(w["x"].ne[0])
    descending = int(w.params["order"])
    yield from _sort_rows(w, n, descending) if n <= _SORTED else _merge(w, n, descending)


@kernel("top_k", ("f32",), forms=FORMS, requires=_rows)
def top_k(w: Work) -> Iterator[Launch]:
    n, k = int(w["x"].ne[0]), int(w.params["k"])
    if n <= _SORTED:
        yield from _sort_rows(w, k, 1)
    elif k <= _MOST_SELECTED:
        yield from _select(w, k)
    else:
        yield from _merge(w, k, 1)


def _launch(
    form: Form, n_blocks: int, threads: int, shared_bytes: int, values: dict[str, Any]
) -> Launch:
    return Launch(form, ARGS, (n_blocks, 1, 1), threads, shared_bytes, {**_UNUSED, **values})


def _power_of_two(n: int) -> int:
    """The least one that is not below n, from 64 on."""
    return max(64, 1 << (n - 1).bit_length())


def _sort_rows(w: Work, k: int, descending: int) -> Iterator[Launch]:
    """The first k indices of rows that a block sorts."""
    x = w["x"]
    size = _power_of_two(int(x.ne[0]))
    threads = min(_SORT_BLOCK, size // 2)
    values = {"k": k, "descending": descending, "size": size}
    yield _launch(SORT_ROWS, int(x.spec.n_rows), threads, 8 * size, values)


def _select(w: Work, k: int) -> Iterator[Launch]:
    """The best of chunks, and the best of those."""
    x = w["x"]
    n_rows, n_chunks = int(x.spec.n_rows), blocks(x.ne[0], _CHUNK)
    size = _power_of_two(k)
    values = {
        "k": k,
        "size": size,
        "n_chunks": n_chunks,
        "chunk": _CHUNK,
        "parts": w.scratch(8 * n_rows * n_chunks * k),
    }
    yield _launch(TOP_CHUNKS, n_rows * n_chunks, _SORT_BLOCK, 0, values)
    yield _launch(TOP_OF_PARTS, n_rows, _SORT_BLOCK, 8 * size, values)


def _merge(w: Work, k: int, descending: int) -> Iterator[Launch]:
    """The first k indices of rows that are sorted in chunks, which are merged pair by pair."""
    x = w["x"]
    n, n_rows = int(x.ne[0]), int(x.spec.n_rows)
    n_chunks = blocks(n, _SORTED)
    together = max(1, min(n_rows, _SCRATCH_BYTES // (16 * n)))
    source, target = (w.scratch(8 * n * together, f"sort {name}") for name in ("a", "b"))
    values: dict[str, Any] = {"k": k, "descending": descending, "n_chunks": n_chunks}
    for first_row in range(0, n_rows, together):
        n_here = min(together, n_rows - first_row)
        values |= {"first_row": first_row, "source": source, "target": target}
        yield _launch(SORT_CHUNKS, n_here * n_chunks, _SORT_BLOCK, 0, values)
        width = _SORTED
        while width < n:
            is_last = 2 * width >= n
            n_tiles = blocks(k if is_last else n, _SORTED)
            values |= {"width": width, "is_last": is_last, "n_tiles": n_tiles}
            yield _launch(MERGE_RUNS, n_here * n_tiles, _MERGE_BLOCK, 0, values)
            values["source"], values["target"] = values["target"], values["source"]
            width *= 2
