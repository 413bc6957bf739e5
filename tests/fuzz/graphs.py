"""Random graphs on the CPU: the same bits on any threads and unfused, each node as the reference.

Every node is judged on the CPU's own inputs, so no error of one counts against the next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import compute, from_bytes
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.conformance import Case, compare
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import type_of
from ggmlpy.ops.norm import GroupNorm, Norm
from tests.fuzz.case import Kind, Recipe, Wrong
from tests.fuzz.graph_draw import draw_graph
from tests.fuzz.graph_recipe import Node, apply
from tests.fuzz.kernels import load_kernels

_LARGEST_QUANTISED = 65504.0  # a block's scale is f16
_UNDERFLOW = 1e-37  # below the normal numbers of f32, where what is left is 0 or not by a rounding
_LARGE = 1e15  # beyond it sums of squares and products overflow in f32, and not in the reference
_ONE_BY_ONE = {"get_rows", "set_rows", "cpy", "cont", "dup", "cast", "concat", "repeat", "pad"}


class Graphs(Kind):
    """A dozen nodes at most, over small leaves."""

    name = "graphs"
    about = "random graphs: cpu on 1 and 2 threads, passes on or off, each node by the reference"
    n_quick = 200
    share = 3.0
    group = 16
    parts = ("nodes",)

    def prepare(self, folder: Path) -> None:
        load_kernels()

    def draw(self, rng: random.Random) -> Recipe:
        return {"nodes": draw_graph(rng)}

    def run(self, recipe: Recipe, folder: Path) -> None:
        try:
            self._compare(recipe["nodes"])
        except GgmlpyError as error:  # what could be built must run
            raise Wrong("refused when run", str(error)) from error

    def _compare(self, nodes: Sequence[Node]) -> None:
        want = results(nodes, 1, "all")
        for n_threads, passes, what in (
            (2, "all", "2 threads differ"),
            (1, "none", "passes differ"),
            (2, "none", "2 threads without passes differ"),
        ):
            _check_same(what, want, results(nodes, n_threads, passes))
        judge(nodes, want)


@cache
def _backend(n_threads: int, passes: str) -> Backend:
    return CpuBackend(n_threads, share_activations=passes == "all")


def build(nodes: Sequence[Node]) -> dict[str, Tensor]:
    """The tensors by name. What lacks a source, or is refused, is left out."""
    tensors: dict[str, Tensor] = {}
    for name, op, sources, params in nodes:
        if op == "leaf":
            tensors[name] = leaf(name, params)
        elif all(source is None or source in tensors for source in sources):
            given = [None if source is None else tensors[source] for source in sources]
            try:
                made = apply(op, given, params)
            except GgmlpyError:
                continue
            if made not in tensors.values():  # else one that was given its sinks
                made.name = name
            tensors[name] = made
    return tensors


def leaf(name: str, params: dict[str, Any]) -> Tensor:
    """A leaf with values by its seed."""
    type, ne = type_of(params["type"]), tuple(params["ne"])
    rng = np.random.default_rng(params["seed"])
    shape = ne[::-1]
    if type.is_quantized:
        raw = random_rows(rng, type, int(np.prod(ne[1:])), ne[0]).reshape(-1)
    elif params["fill"] == "ids":
        raw = _ids(rng, params, shape).astype(type.dtype).reshape(-1).view(np.uint8)
    elif params["fill"] == "seen":
        raw = _seen(rng, params, shape).reshape(-1).view(np.uint8)
    else:
        raw = from_float(_values(rng, params["fill"], shape), type).reshape(-1).view(np.uint8)
    made = from_bytes(bytearray(raw.tobytes()), type, ne, name=name)
    made.flags = Flag.WEIGHT if params.get("weight") else Flag.NONE
    if params.get("state"):
        made.flags = Flag.STATE
    return made


def _ids(rng: np.random.Generator, params: dict[str, Any], shape: Sequence[int]) -> NDArray[Any]:
    limit = max(params["limit"], 1)
    if not params.get("unique"):
        return rng.integers(0, limit, shape)
    n_lists = int(np.prod(shape[:-1]))
    lists = [rng.permutation(max(limit, shape[-1]))[: shape[-1]] for _ in range(n_lists)]
    return np.array(lists).reshape(shape)


def _seen(
    rng: np.random.Generator, params: dict[str, Any], shape: Sequence[int]
) -> NDArray[np.int32]:
    """For each query a list, the first of its entries that is seen, and how many are."""
    n_max = max(params["entries"], 1)
    first = rng.integers(0, n_max, shape[:-1])
    n = rng.integers(0, n_max - first + 1)
    lists = rng.integers(0, max(params["limit"], 1), shape[:-1])
    return np.stack([lists, first, n], -1).astype(np.int32)


def _values(rng: np.random.Generator, fill: str, shape: Sequence[int]) -> NDArray[np.float32]:
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


def roots(nodes: Sequence[Tensor]) -> list[Tensor]:
    """The nodes that no other reads."""
    read = {id(source) for node in nodes for source in node.src}
    return [node for node in nodes if id(node) not in read]


def results(nodes: Sequence[Node], n_threads: int, passes: str) -> dict[str, bytes]:
    """Bytes of what no node reads, and of every leaf that is written to."""
    tensors = build(nodes)
    wanted = roots([t for t in tensors.values() if not t.is_leaf])
    if not wanted:
        return {}
    compute(wanted, backend=_backend(n_threads, passes), passes=passes)
    states = [t for t in tensors.values() if Flag.STATE in t.flags]
    return {t.name: _raw(t) for t in (*wanted, *states)}


def _raw(tensor: Tensor) -> bytes:
    """Its values as bytes; a quantised one's blocks.

    A NaN is one like any other: its sign and payload are those of whichever operand the processor
    takes first, and no part of the result.
    """
    if tensor.type.is_quantized:
        return tensor.tobytes()
    values = tensor.numpy()
    if values.dtype.kind == "f":
        values[np.isnan(values)] = np.nan
    return values.tobytes()


def _check_same(what: str, want: dict[str, bytes], got: dict[str, bytes]) -> None:
    for name, raw in want.items():
        if got[name] != raw:
            a, b = (np.frombuffer(x, np.uint8) for x in (raw, got[name]))
            n = int((a != b).sum())
            raise Wrong(what, f"{name}: {n} of {len(a)} bytes")


def judge(nodes: Sequence[Node], want: dict[str, bytes]) -> None:
    """Run all nodes for their values, and each by the reference on these."""
    tensors = build(nodes)
    before = {t.name: t.tobytes() for t in tensors.values() if Flag.STATE in t.flags}
    made = [t for t in tensors.values() if not t.is_leaf]
    if not made:
        return
    compute(made, backend=_backend(1, "none"), passes="none")
    _check_same("outputs differ", want, {t.name: _raw(t) for t in tensors.values()})
    for node in Graph(*made).nodes:
        assert node.op is not None
        if node.op.computes:
            _judge_node(node, before)


def _judge_node(node: Tensor, before: dict[str, bytes]) -> None:
    assert node.op is not None
    sources = [_as_leaf(source, before) for source in node.src]
    again = node.op.node(*sources)
    want = compute(again, backend="reference")
    got = node.numpy()
    types = [source.type.name for source in node.src] or ["f32"]
    params: dict[str, Any] = {"type": node.type.name} if node.op.name == "cast" else {}
    case = Case(node.op.name, ne=[s.ne for s in node.src], types=types, **params)
    if _is_wild(node, sources):
        return
    if got.dtype.kind == "f":
        got = np.where((want == 0) & (np.abs(got) < _UNDERFLOW), want, got)
    wrong = compare(case, got, want)
    if wrong and not (wrong.startswith("NMSE") and _within(node, sources, got, want)):
        raise Wrong(f"{node.op.name} differs", f"{node}: {wrong}")


def _as_leaf(source: Tensor, before: dict[str, bytes]) -> Tensor:
    """A source's values, contiguous; of one that is written to, those before."""
    raw = before.get(source.name) if source.is_leaf else None
    if not source.contiguous:
        raw = from_float(source.numpy(), source.type).tobytes()
    made = from_bytes(bytearray(raw or source.tobytes()), source.type, source.ne)
    made.flags = Flag.NONE
    return made


def _floats(sources: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    arrays = [source.numpy() for source in sources]
    return [a.astype(np.float64) for a in arrays if a.dtype.kind == "f"]


def _is_wild(node: Tensor, sources: Sequence[Tensor]) -> bool:
    """Whether f32 and the reference's f64 may rightly part: in sums of what is not finite, or huge.

    A mask's -inf is none of that. What a quantised block holds of such a number is not defined.
    """
    assert node.op is not None
    op = node.op.name
    if node.type.block_size > 1:
        return any(bool((~(np.abs(x) <= _LARGEST_QUANTISED)).any()) for x in _floats(sources[:1]))
    if op in _ONE_BY_ONE:
        return False
    values = _floats(sources[:1] if "max" in op else sources[:3])
    return any(bool((~np.isfinite(x) | (np.abs(x) > _LARGE)).any()) for x in values)


def _slack_of_mean(node: Tensor, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the rounding of a mean in f32 comes to where a row, or group, hardly differs from it."""
    op = node.op
    assert isinstance(op, GroupNorm | Norm)
    groups: list[NDArray[np.float64]] = [x]
    axes: tuple[int, ...] = (-1,)
    if isinstance(op, GroupNorm):
        step = -(-x.shape[1] // op.n_groups)
        groups = [x[:, i : i + step] for i in range(0, x.shape[1], step)]
        axes = (1, 2, 3)
    parts = []
    for group in groups:
        deviation = np.sqrt(group.var(axis=axes, keepdims=True) + op.eps)
        rounding = np.finfo(np.float32).eps * np.abs(group).max(axis=axes, keepdims=True)
        parts.append(np.broadcast_to(rounding / deviation, group.shape))
    return np.concatenate(parts, axis=1)


def _within(node: Tensor, sources: Sequence[Tensor], got: NDArray[Any], want: NDArray[Any]) -> bool:
    """Whether each element is as near as it can be expected to be where few make up the NMSE."""
    assert node.op is not None
    values = _floats(sources)
    largest = max(
        (float(np.abs(x).max(initial=0, where=np.isfinite(x))) for x in values), default=1
    )
    step = {"f16": 2.0**-10, "bf16": 2.0**-7}.get(node.type.name, 1e-5)
    slack = step * np.abs(want) + 1e-6 * max(largest, 1.0)
    if node.op.name in ("mul_mat", "mul_mat_id"):
        n = sources[0].ne[0]
        weights, x = values[0], values[1]
        slack = slack + 0.01 * n**0.5 * float(np.abs(weights).max()) * float(np.abs(x).max())
    elif node.op.name in ("flash_attn_ext", "soft_max", "soft_max_ext"):
        slack = slack + 4e-3 * max(1.0, float(np.abs(values[-1 if len(values) < 3 else 2]).max()))
    elif node.op.name in ("sum", "sum_rows", "mean", "cumsum", "norm", "l2_norm", "group_norm"):
        slack = slack + 1e-5 * largest * sources[0].spec.n_elements ** 0.5
    if node.op.name in ("norm", "group_norm"):
        slack = slack + _slack_of_mean(node, values[0])
    return bool((np.abs(got.astype(np.float64) - want) <= slack).all())
