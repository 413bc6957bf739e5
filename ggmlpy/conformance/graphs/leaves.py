"""Leaves of programs: their values by a seed, and where they lie.

    fill     values
    uniform  -1 to 1                        sparse    the same, four of five 0
    normal   of deviation 8                 ties      multiples of 1/4
    positive 0.5 to 1.5                     mask      two of five -inf
    special  one of five NaN, infinite, -0, huge or tiny
    ones     1
    ids      indices below `limit`; `unique` within a row of the leaf
    case     those of a leaf of a case's graph; the seed is that of its inputs
    seen     for each query a list below `limit`, the first of its `entries` that is seen, and how
             many are

Quantised leaves are random blocks, whatever their fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.graphs.program import Node, Program
from ggmlpy.conformance.inputs import build
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.buffer import HOST, BufferType, Bytes, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import TensorType, type_of

_N_BLOCKS = 192  # random blocks of each type: making new ones for every leaf takes milliseconds


class LeafValues:
    """The bytes of leaves in each run, made once for all who ask."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Bytes] = {}

    def __call__(self, node: Node, run: int) -> Bytes:
        made = self._made.get((node.name, run))
        if made is None:
            made = self._made[node.name, run] = leaf_bytes(node, run)
        return made


def placeless_leaf(node: Node) -> Tensor:
    """A leaf without data, for shapes alone."""
    spec = Spec(node.params["ne"], type_of(node.params["type"]))
    return Tensor(spec, name=node.name, flags=_flag(node))


def make_leaf(node: Node, raw: Bytes, place: Place) -> Tensor:
    """A leaf with these bytes at a place."""
    leaf = placeless_leaf(node)
    leaf.place = place
    place.buffer.write(place.offset, raw)
    return leaf


def places_of(program: Program, memory_of: Callable[[Node], BufferType]) -> dict[str, Place]:
    """Places for the leaves: inputs lie in one buffer, as those of a model, the others alone."""
    specs = {node.name: placeless_leaf(node).spec for node in program.nodes if node.is_leaf}
    places = {}
    inputs = []
    for node in program.nodes:
        if node.is_leaf and node.params.get("input"):
            inputs.append(node.name)
        elif node.is_leaf:
            memory = memory_of(node)
            places[node.name] = Place(memory.allocate(memory.tensor_bytes(specs[node.name])))
    buffer = HOST.allocate(sum(HOST.tensor_bytes(specs[name]) for name in inputs))
    offset = 0
    for name in inputs:
        places[name] = Place(buffer, offset)
        offset += HOST.tensor_bytes(specs[name])
    return places


def changes(node: Node) -> bool:
    """Whether a leaf has other values in every run."""
    return not (node.params.get("weight") or node.params.get("state"))


def _flag(node: Node) -> Flag:
    for name, flag in (("weight", Flag.WEIGHT), ("state", Flag.STATE), ("input", Flag.INPUT)):
        if node.params.get(name):
            return flag
    return Flag.NONE


def leaf_bytes(node: Node, run: int) -> Bytes:
    """The bytes of a leaf in a run."""
    params = node.params
    type, shape = type_of(params["type"]), tuple(params["ne"])[::-1]
    rng = np.random.default_rng((params["seed"], run) if run else params["seed"])
    fill = params["fill"]
    if fill == "case":
        values: Bytes = _case_leaves(params["case"], params["seed"] + run)[params["index"]]
        return values
    if type.is_quantized:
        return _blocks(rng, type, shape)
    if fill == "ids":
        ids: Bytes = _ids(rng, params, shape).astype(type.dtype).reshape(-1).view(np.uint8)
        return ids
    if fill == "seen":
        return _seen(rng, params, shape).reshape(-1).view(np.uint8)
    with np.errstate(over="ignore"):  # infinite in f16
        return from_float(_values(rng, fill, shape), type).reshape(-1).view(np.uint8)


@cache
def _known_blocks(type: TensorType) -> Bytes:
    rng = np.random.default_rng(0)
    return random_rows(rng, type, _N_BLOCKS, type.block_size)


def _blocks(rng: np.random.Generator, type: TensorType, shape: Sequence[int]) -> Bytes:
    known = _known_blocks(type)
    picked = rng.integers(0, len(known), int(np.prod(shape)) // type.block_size)
    return known[picked].reshape(-1)


@lru_cache(maxsize=64)
def _case_leaves(id: str, seed: int) -> list[Bytes]:
    case = _cases().get(id)
    if case is None:
        raise ArgumentError(f"{id!r} is no case of the table: a program has one of its leaves")
    leaves = Graph(build(case, seed)).leafs
    places = [leaf.place for leaf in leaves if leaf.place is not None]
    return [
        place.buffer.read(place.offset, leaf.spec.n_bytes).copy()
        for leaf, place in zip(leaves, places, strict=True)
    ]


@cache
def _cases() -> dict[str, Case]:
    return {case.id: case for case in CASES}


def _ids(rng: np.random.Generator, params: Any, shape: Sequence[int]) -> NDArray[Any]:
    limit = max(params["limit"], 1)
    if not params.get("unique"):
        return rng.integers(0, limit, shape)
    n_lists = int(np.prod(shape[:-1]))
    lists = [rng.permutation(max(limit, shape[-1]))[: shape[-1]] for _ in range(n_lists)]
    return np.array(lists).reshape(shape)


def _seen(rng: np.random.Generator, params: Any, shape: Sequence[int]) -> NDArray[np.int32]:
    n_max = max(params["entries"], 1)
    first = rng.integers(0, n_max, shape[:-1])
    n = rng.integers(0, n_max - first + 1)
    lists = rng.integers(0, max(params["limit"], 1), shape[:-1])
    return np.stack([lists, first, n], -1).astype(np.int32)


def _values(rng: np.random.Generator, fill: str, shape: Sequence[int]) -> NDArray[np.float32]:
    if fill == "ones":
        return np.ones(shape, np.float32)
    values = rng.uniform(-1, 1, shape)
    if fill == "normal":
        values = rng.standard_normal(shape) * 8
    elif fill == "sparse":
        values = values * (rng.uniform(0, 1, shape) < 0.2)
    elif fill == "ties":
        values = np.round(values * 4) / 4
    elif fill == "positive":
        values = np.abs(values) + 0.5
    elif fill == "mask":
        values = np.where(rng.uniform(0, 1, shape) < 0.4, -np.inf, values)
    elif fill == "special":
        chosen = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-40], shape)
        values = np.where(rng.uniform(0, 1, shape) < 0.2, chosen, values)
    return values.astype(np.float32)
