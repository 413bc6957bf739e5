"""A model's graph, node by node, on two backends.

Each node runs on the second backend over copies of what it read on the first, so a difference is
that node's own. Both results are judged by the node's bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.bounds import expect
from ggmlpy.conformance.judge import judge, nmse
from ggmlpy.conformance.run import Array, Prepared, unsupported
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes


@dataclass(frozen=True, slots=True)
class Compared:
    """A node on two backends.

    nmse    of the second's result against the first's
    wrong   what is wrong with either by the node's bound, empty if nothing
    skipped why the second did not run it, empty if it did
    """

    name: str
    op: str
    nmse: float
    wrong: str
    skipped: str = ""


def compare_graph(graph: Graph, first: Backend, second: Backend) -> Iterator[Compared]:
    """Every computing node of a graph whose values are those of a run on `first`.

    All nodes must have their values (`Tensor.numpy`), as after `compute(*nodes)`.
    """
    for node in graph.nodes:
        if node.op is None or not node.op.computes:
            continue
        name, op = graph.name_of(node), str(node.op)
        sources = [_copy(source) for source in node.src]
        again = node.op.node(*sources)
        again.name = node.name
        reason = unsupported(second, [again])
        if reason:
            yield Compared(name, op, 0.0, "", reason)
            continue
        arrays = [source.numpy().reshape(source.ne[::-1]) for source in sources]
        try:
            run = Prepared(second, [again])
            run.run()
        except GgmlpyError as error:
            yield Compared(name, op, np.inf, f"{second.name}: {error}")
            continue
        got, was = run.value(again), node.numpy().reshape(node.ne[::-1])
        yield Compared(
            name, op, _distance(got, was), _wrong(again, arrays, (first, was), (second, got))
        )


def _wrong(node: Tensor, sources: Sequence[Array], *results: tuple[Backend, Array]) -> str:
    for backend, values in results:
        wrong = judge(node, values, expect(node, sources, backend.rounding(node)))
        if wrong:
            return f"{backend.name}: {wrong}"
    return ""


def _distance(got: Array, was: Array) -> float:
    """The NMSE where both are finite."""
    if got.dtype.kind != "f":
        return float((got != was).any())
    finite = np.isfinite(got) & np.isfinite(was)
    return nmse(got[finite], was[finite])


def _copy(source: Tensor) -> Tensor:
    """A leaf with the source's values; of a leaf that is not a view, its bytes."""
    if source.is_leaf:
        raw = source.tobytes()
    else:
        raw = from_float(source.numpy().reshape(source.ne[::-1]), source.type).tobytes()
    leaf = from_bytes(bytearray(raw), source.type, source.ne)
    leaf.flags = source.flags & Flag.WEIGHT if source.is_leaf else Flag.NONE
    if source.is_leaf and Flag.STATE in source.flags:
        leaf.flags = Flag.STATE
    assert leaf.place is not None
    leaf.place = Place(HostBuffer(np.frombuffer(bytearray(raw), np.uint8)))
    return leaf
