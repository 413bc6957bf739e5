"""One graph on one backend, strictly: every node runs there or the case is not supported.

Nodes run as single steps, each result in memory of its own between guards, in the memory of the
backend. Weights are loaded as those of a model are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Plan, Weight
from ggmlpy.backends.step import Step
from ggmlpy.conformance.memory import GuardedMemory, Region, Written
from ggmlpy.graph.arrays import read_array
from ggmlpy.graph.buffer import Bytes, HostBuffer, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.op import Op
from ggmlpy.graph.tensor import Flag, Tensor

Array = NDArray[Any]


def computing(*roots: Tensor) -> list[Tensor]:
    """The nodes of a graph that run, in running order: those that are no views."""
    return [n for n in Graph(*roots).nodes if n.op is not None and n.op.computes]


def unsupported(backend: Backend, nodes: Sequence[Tensor]) -> str:
    """Why the backend cannot run these nodes, by the first that it cannot; empty if it can."""
    for node in nodes:
        if not backend.supports(node):
            assert node.op is not None
            types = ", ".join(str(source.spec) for source in node.src)
            return f"{backend.name} does not support {node.op.name} of {types or 'no sources'}"
    return ""


def can_run_in_place(node: Tensor) -> bool:
    """Whether the result may lie over source 0: the op allows it, and no other source is there."""
    if node.op is None or not node.op.in_place or not node.src or node.view_src is not None:
        return False
    first = node.src[0]
    alone = sum(source.root is first.root for source in node.src) == 1
    return alone and Flag.WEIGHT not in first.root.flags and node.spec.same_layout(first.spec)


@dataclass(slots=True)
class Prepared:
    """A graph in guarded memory, with a plan of its nodes.

    in_place   the result of the only node lies over its source 0
    shift      bytes by which tensors lie off the memory's alignment
    """

    backend: Backend
    nodes: list[Tensor]
    in_place: bool = False
    shift: int = 0
    _memory: GuardedMemory = field(init=False)
    _regions: dict[Tensor, Region] = field(init=False, default_factory=dict)
    _places: dict[Tensor, Place] = field(init=False, default_factory=dict)
    _plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        """Raises what the backend raises when it loads weights, allocates and plans."""
        self._memory = GuardedMemory(self.backend.buffer_type)
        leaves = _leaves(self.nodes)
        weights = [leaf for leaf in leaves if Flag.WEIGHT in leaf.flags]
        for leaf in leaves:
            if Flag.WEIGHT not in leaf.flags:
                self._regions[leaf] = self._memory.add(
                    _named("source", leaf, leaves), _bytes_of(leaf), self.shift
                )
        for node in self.nodes:
            if node.view_src is None and not self.in_place:
                name = _named("the result", node, self.nodes)
                self._regions[node] = self._memory.add(name, node.spec.n_bytes, self.shift)
        self._memory.allocate()
        self._memory.reset()
        if weights:
            self.backend.load_weights(
                [Weight(leaf, _readers(leaf, self.nodes)) for leaf in weights]
            )
        for tensor in dict.fromkeys(t for node in self.nodes for t in (*node.src, node)):
            self._places[tensor] = self._place(tensor)
        self._plan = self.backend.plan([Step.of(node) for node in self.nodes], self._places)

    def run(self) -> None:
        """Run once, from the initial bytes. Raises IndexOutOfRange and what the backend raises."""
        self._memory.reset()
        self._plan.submit()
        self.backend.synchronize()
        self._plan.check()

    def again(self) -> None:
        """Submit once more, over what the last run has left: to measure, and not to judge."""
        self._plan.submit()

    def raw(self, node: Tensor) -> Bytes:
        """The bytes of a result's extent."""
        region, offset = self._at(node)
        return self._memory.read(region, offset, node.spec.n_bytes)

    def value(self, node: Tensor) -> Array:
        """The values of a result `[ne3, ne2, ne1, ne0]`, quantised types as f32."""
        return read_array(self.raw(node), node.spec)

    def sources(self, node: Tensor, before: Mapping[Tensor, Bytes]) -> list[Array]:
        """The values that a node read: those in `before` of a leaf that no node wrote until then,
        else those that the run has left, which must be those of the only writer."""
        written = {earlier.root for earlier in self.nodes[: self.nodes.index(node)]}
        found = []
        for source in node.src:
            if source.root in before and source.root not in written:
                found.append(read_array(before[source.root], source.spec, source.view_offs))
            else:
                found.append(self.value(source))
        return found

    def wrongly_changed(self, before: Mapping[Tensor, Bytes] | None = None) -> str:
        """What the run changed besides its results; empty if nothing.

        With the initial bytes of leaves, rows of a result that its op does not write are none.
        """
        written = []
        for node in self.nodes:
            region, offset = self._at(node)
            rows = None if before is None else self._written_rows(node, before)
            written.append(Written(region, node.spec, offset, rows))
        return self._memory.wrongly_changed(written)

    def _written_rows(
        self, node: Tensor, before: Mapping[Tensor, Bytes]
    ) -> NDArray[np.bool_] | None:
        assert node.op is not None
        if type(node.op).written_rows is Op.written_rows:  # all of them, whatever the sources
            return None
        return node.op.written_rows(*self.sources(node, before))

    def _place(self, tensor: Tensor) -> Place:
        if tensor.root not in self._regions and tensor.root.is_leaf:  # a loaded weight
            assert tensor.root.place is not None
            at = tensor.root.place
            return Place(at.buffer, at.offset + tensor.view_offs)
        return self._memory.place(*self._at(tensor))

    def _at(self, tensor: Tensor) -> tuple[Region, int]:
        """The region that a tensor lies in, and its offset there."""
        if self.in_place and tensor is self.nodes[-1]:
            tensor = tensor.src[0]
        return self._regions[tensor.root], tensor.view_offs


def restore(before: Mapping[Tensor, Bytes]) -> None:
    """Give leaves their bytes on the host again: weights that were loaded have moved."""
    for leaf, data in before.items():
        leaf.place = Place(HostBuffer(data.copy()))


def initial_bytes(nodes: Sequence[Tensor]) -> dict[Tensor, Bytes]:
    """Copies of the bytes of all leaves. Take them before weights are loaded."""
    return {leaf: _bytes_of(leaf).copy() for leaf in _leaves(nodes)}


def _leaves(nodes: Sequence[Tensor]) -> list[Tensor]:
    roots = (source.root for node in nodes for source in node.src)
    return [root for root in dict.fromkeys(roots) if root.is_leaf]


def _readers(leaf: Tensor, nodes: Sequence[Tensor]) -> frozenset[str]:
    """Names of the ops that read a leaf."""
    return frozenset(
        node.op.name
        for node in nodes
        if node.op is not None and any(source.root is leaf for source in node.src)
    )


def _named(what: str, tensor: Tensor, among: Sequence[Tensor]) -> str:
    number = f" {among.index(tensor)}" if len(among) > 1 else ""
    return f"{what}{number}{' ' + tensor.name if tensor.name else ''} ({tensor.spec})"


def _bytes_of(leaf: Tensor) -> Bytes:
    assert leaf.place is not None, f"{leaf} has no data"
    return np.asarray(leaf.place.buffer.read(leaf.place.offset, leaf.spec.n_bytes))
