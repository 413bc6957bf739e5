"""Nodes that write where nothing may be written, or onto what they read.

Memory that is read-only is refused or left alone. A source that shares bytes with what is written
is refused, unless it is the very same rows, or the result is as of a copy of it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import compute, from_bytes, from_numpy, ops
from ggmlpy.graph.tensor import Tensor
from tests.fuzz.case import Kind, Recipe, Wrong
from tests.fuzz.kernels import load_kernels

_N, _ROWS = 32, 12


class Writes(Kind):
    """One `cpy` or `set_rows`, then what became of the bytes."""

    name = "writes"
    about = "cpy and set_rows into read-only memory, and onto their own source"
    n_quick = 200
    share = 0.3
    group = 16
    parts = ("rows",)

    def prepare(self, folder: Path) -> None:
        load_kernels()

    def draw(self, rng: random.Random) -> Recipe:
        recipe: Recipe = {
            "op": rng.choice(("cpy", "set_rows")),
            "memory": rng.choice(("bytes", "read-only", "mapped", "bytearray", "shared", "shared")),
            "type": rng.choice(("f32", "f32", "f16", "q8_0")),
            "backend": rng.choice(("cpu", "cpu", "reference")),
            "n_threads": rng.choice((1, 2)),
            "apart": rng.choice((0, 0, 1, 2, 5)),
        }
        n = rng.choice((1, 3, 6))
        recipe["rows"] = rng.sample(range(_ROWS - 6), n)
        return recipe

    def run(self, recipe: Recipe, folder: Path) -> None:
        if not recipe["rows"]:
            return
        before = np.random.default_rng(1).standard_normal((_ROWS, _N)).astype(np.float32)
        if recipe["memory"] == "shared":
            _onto_itself(recipe, before)
        else:
            _into_memory(recipe, before, folder)


def _written(recipe: Recipe, into: Tensor, x: Tensor) -> Tensor:
    """The node: the first rows are copied to, or those of the recipe."""
    if recipe["op"] == "cpy":
        n = len(recipe["rows"])
        return ops.cpy(x, ops.view_2d(into, into.ne[0], n, into.nb[1], 0))
    return ops.set_rows(into, x, from_numpy(np.array(recipe["rows"], np.int64)))


def _compute(recipe: Recipe, node: Tensor) -> None:
    threads = {"n_threads": recipe["n_threads"]} if recipe["backend"] == "cpu" else {}
    compute(node, backend=recipe["backend"], **threads)


def _into_memory(recipe: Recipe, before: NDArray[np.float32], folder: Path) -> None:
    x = from_numpy(np.ones((len(recipe["rows"]), _N), np.float32))
    type = recipe["type"]
    plain = before if type == "f32" else before.astype(np.float16)
    held = bytes(34 * _ROWS) if type == "q8_0" else plain.tobytes()
    kept = bytearray(held)
    memory = _memory(recipe["memory"], held, folder)
    try:
        _compute(recipe, _written(recipe, from_bytes(memory, type, (_N, _ROWS)), x))
    finally:
        if recipe["memory"] != "bytearray" and bytes(memory) != kept:
            raise Wrong("read-only memory written", recipe["memory"])


def _memory(kind: str, held: bytes, folder: Path) -> Any:
    if kind == "bytearray":
        return bytearray(held)
    if kind == "bytes":
        return held
    if kind == "mapped":
        (folder / "data").write_bytes(held)
        return np.memmap(folder / "data", np.uint8, "r")
    array = np.frombuffer(bytearray(held), np.uint8)
    array.flags.writeable = False
    return array


def _onto_itself(recipe: Recipe, before: NDArray[np.float32]) -> None:
    """The source is a window of the tensor that is written, `apart` rows further on."""
    memory = before.copy()
    into = from_numpy(memory)
    n, apart = len(recipe["rows"]), recipe["apart"]
    x = ops.view_2d(into, _N, n, into.nb[1], apart * into.nb[1])
    want = before.copy()
    want[list(range(n)) if recipe["op"] == "cpy" else recipe["rows"]] = before[apart : apart + n]
    _compute(recipe, _written(recipe, into, x))
    if memory.tobytes() != want.tobytes():
        raise Wrong("overlapping rows", f"{recipe['op']} from {apart} rows on")
