"""From a conformance case to a graph with its inputs. The same case gives the same bytes."""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.case import Case
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of

# NaN, and numbers at the ends of f32, f16 and bf16: zeros, infinities, denormals, the smallest
# normal numbers and the largest, some near 1. What is too large or small for a type is rounded.
SPECIAL = np.array([
    0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-140), 2.0**-126, 2.0**-24, -(2.0**-15),
    2.0**-14, 65504.0, -65520.0, 3.0e38, -3.4e38, 1.0, -1.0, 1 + 2.0**-10, 88.8, -103.5, 0.5, -2.5,
])  # fmt: skip
_SPECIAL_SHARE = 0.3

Builder = Callable[[Case, "Inputs"], Tensor]

_BUILDERS: dict[str, Builder] = {}  # filled by @builds, when the families of cases are imported


def builds(op: str) -> Callable[[Builder], Builder]:
    """Decorator: the function makes the output tensor of an op's cases.

    Other ops get `ops.<op>(source, source, ..., param=...)`.
    """

    def register(builder: Builder) -> Builder:
        assert op not in _BUILDERS, f"{op} has two builders"
        _BUILDERS[op] = builder
        return builder

    return register


def build(case: Case, seed: int = 0) -> Tensor:
    """The output tensor, over fresh inputs. Another seed gives other inputs."""
    return _BUILDERS.get(case.op, _generic)(case, Inputs(case, seed))


class Inputs:
    """Makes a case's sources, in the order asked for."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.rng = np.random.default_rng([zlib.crc32(case.id.encode()), seed])

    def __getitem__(self, i: int) -> Tensor:
        """Source i, laid out as the case says; dimensions as declared."""
        ne = as_ne(self.case.ne[i])
        layout = self.case.layouts[i]
        if layout == "permuted":
            return ops.permute(self._leaf(i, (ne[0], ne[2], ne[1], ne[3])), 0, 2, 1, 3)
        if layout == "transposed":
            return ops.transpose(self._leaf(i, (ne[1], ne[0], ne[2], ne[3])))
        if layout in ("view", "offset", "repeated"):
            return {"view": self._window, "offset": self._offset, "repeated": self._repeated}[
                layout
            ](i, ne)
        if layout:
            axes = [
                int(axis) for axis in layout
            ]  # dimension j of the leaf is axes[j] of the source
            of_leaf = (ne[axes[0]], ne[axes[1]], ne[axes[2]], ne[axes[3]])
            return ops.permute(self._leaf(i, of_leaf), *axes)
        return self._leaf(i, ne)

    def _window(self, i: int, ne: tuple[int, int, int, int]) -> Tensor:
        """Rows start three elements (or a block) into longer rows; the first row is left out."""
        type = type_of(self.case.types[i])
        margin = type.block_size if type.is_quantized else 3
        whole = self._leaf(i, (ne[0] + margin, ne[1] + 2, ne[2] + 1, ne[3]))
        offset = whole.nb[1] + margin // type.block_size * type.type_size
        return ops.view_4d(whole, *ne, *whole.nb[1:], offset)

    def _offset(self, i: int, ne: tuple[int, int, int, int]) -> Tensor:
        """Contiguous, but one element (or block) into its memory: rows lie on odd addresses."""
        type = type_of(self.case.types[i])
        n = math.prod(ne)
        whole = self._leaf(i, (n + type.block_size, 1, 1, 1))
        row = type.row_bytes(ne[0])
        strides = (row, row * ne[1], row * ne[1] * ne[2])
        return ops.view_4d(whole, *ne, *strides, type.type_size)

    def _repeated(self, i: int, ne: tuple[int, int, int, int]) -> Tensor:
        """One row in memory, which all rows are: strides of 0."""
        return ops.view_4d(self._leaf(i, (ne[0], 1, 1, 1)), *ne, 0, 0, 0, 0)

    def _leaf(self, i: int, ne: tuple[int, int, int, int]) -> Tensor:
        type = type_of(self.case.types[i])
        if type.is_quantized:
            rows = random_rows(self.rng, type, ne[1] * ne[2] * ne[3], ne[0])
            return self._flagged(i, from_bytes(rows, type, ne))
        low, high = self.case.span
        values: NDArray[Any]
        if not type.is_float:
            values = self.rng.integers(math.floor(low), math.ceil(high) + 1, ne[::-1])
        else:
            values = self.rng.uniform(low, high, ne[::-1])
        if self.case.params.get("ties"):
            values = np.round(values * 4) / 4
        kind = self.case.params.get("values")
        if kind is not None and type.is_float:
            limit = 65504.0 if type.name == "f16" else 3.4e38
            among = {"special": SPECIAL, "finite": SPECIAL[np.abs(SPECIAL) <= limit]}[kind]
            chosen = self.rng.choice(among, values.shape)
            values = np.where(self.rng.uniform(0, 1, values.shape) < _SPECIAL_SHARE, chosen, values)
        return self._flagged(i, stored(values, type.name, ne))

    def _flagged(self, i: int, leaf: Tensor) -> Tensor:
        """Only what a model's file holds is a weight: a backend may keep it in its own form.

        The case's `weights` are numbers of sources.
        """
        usual = (0,) if self.case.op in ("mul_mat", "mul_mat_id", "get_rows") else ()
        weight = i in self.case.params.get("weights", usual)
        leaf.flags = Flag.WEIGHT if weight else Flag.NONE
        return leaf

    def ids(
        self, ne: tuple[int, ...], limit: int, type: str = "i32", unique: bool = False
    ) -> Tensor:
        """Indices from 0 to limit - 1; `unique` within each row of the tensor."""
        shape = ne[::-1]
        if not unique:
            values = self.rng.integers(0, limit, shape)
        else:
            lists = [self.rng.permutation(limit)[: ne[0]] for _ in range(math.prod(ne[1:]))]
            values = np.array(lists).reshape(shape)
        return from_numpy(values.astype(type.replace("i", "int")))


def stored(values: NDArray[Any], type: str, ne: tuple[int, ...]) -> Tensor:
    """A leaf with these values, numpy order, converted to a type."""
    with np.errstate(over="ignore"):  # what is too large is inf
        raw = from_float(values.astype(np.float64), type_of(type))
    leaf = from_bytes(raw.reshape(-1), type, ne)
    leaf.flags = Flag.NONE
    return leaf


def _generic(case: Case, inputs: Inputs) -> Tensor:
    """`ops.<op>(source, source, ..., param=...)`."""
    function: Callable[..., Tensor] = getattr(ops, case.op)
    known = inspect.signature(function).parameters
    params = {k: v for k, v in case.params.items() if k in known}
    return function(*[inputs[i] for i in range(len(case.ne))], **params)
