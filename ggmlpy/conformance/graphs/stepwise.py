"""A graph run node by node: without scheduler, passes and reuse of memory, each node checked.

Every root has memory of its own between guards, poisoned before it is written. After a node has run
its result is judged by the op's reference on the node's own sources, and nothing else may have
changed. So an error of one node does not count against the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Plan
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.conformance.graphs.judging import judge_node
from ggmlpy.graph.arrays import element_view, read_array, row_view
from ggmlpy.graph.buffer import ALIGNMENT, Buffer, Bytes, HostBuffer, Place, aligned_bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor

POISON = 0xFF  # as f32, f16 or bf16 NaN, as an index -1
_GUARD = 2 * ALIGNMENT


def guarded(n_bytes: int) -> Place:
    """Poisoned memory of the host with a guard on either side."""
    data = aligned_bytes(n_bytes + 2 * _GUARD)
    data[:] = POISON
    return Place(HostBuffer(data), _GUARD)


class Stepwise:
    """A graph whose nodes run one at a time, each on a backend of its own choice.

    The graph's leaves have their places, on the host, as `guarded` makes them.
    """

    def __init__(self, graph: Graph, on: Mapping[Tensor, Backend]) -> None:
        self.graph = graph
        self._memory: dict[Tensor, Place] = {}
        for leaf in graph.leafs:
            assert leaf.place is not None, f"{leaf} has no data"
            self._memory[leaf] = leaf.place
        self._steps: list[_Step] = []
        for node in graph.nodes:
            if node.op is None or not node.op.computes:
                continue
            if node.root not in self._memory:
                self._memory[node.root] = guarded(node.root.spec.n_bytes)
            self._steps.append(_Step(node, on[node], self._memory))

    def run(self, judged: bool = True) -> str:
        """Run all nodes from the current inputs. Returns "", or what of a node is wrong."""
        for step in self._steps:
            wrong = step.run(judged)
            if wrong:
                return wrong
        return ""

    def read(self, tensor: Tensor) -> Bytes:
        """The bytes of the tensor's extent."""
        place = self._memory[tensor.root]
        start = place.offset + tensor.view_offs
        return place.host_bytes[start : start + tensor.spec.n_bytes]


class _Step:
    """A node, its plan, and the memory of its roots on the host and where the backend uses it."""

    def __init__(self, node: Tensor, backend: Backend, memory: Mapping[Tensor, Place]) -> None:
        self.node, self._backend = node, backend
        self._memory = {t.root: memory[t.root] for t in (*node.src, node)}
        self._on_device: dict[Tensor, Buffer] = {}
        at = self._memory
        if not backend.buffer_type.is_host:
            self._on_device = {
                root: backend.buffer_type.allocate(backend.buffer_type.tensor_bytes(root.spec))
                for root in self._memory
            }
            at = {root: Place(buffer) for root, buffer in self._on_device.items()}
        step = Step.of(node)
        places = {
            t: Place(at[t.root].buffer, at[t.root].offset + t.view_offs) for t in step.tensors
        }
        self._plan: Plan = backend.plan([step], places)
        self._is_judged = type(backend) is not ReferenceBackend

    def run(self, judged: bool) -> str:
        """Run the node; what is wrong, if it is judged."""
        node, own = self.node, self._memory[self.node.root]
        if node.op is not None and node.op.view_of is None:
            own.host_bytes[:] = POISON
        before = {root: place.host_bytes.copy() for root, place in self._memory.items()}
        sources = [_read(source, before[source.root]) for source in node.src]
        self._compute()
        for root, place in self._memory.items():
            same = place.host_bytes == before[root]
            if root is node.root:
                same[_GUARD : len(same) - _GUARD][_written_bytes(node, sources)] = True
            if not same.all():
                return _overwritten(node, root, int(np.argmin(same)) - _GUARD)
        if not judged or not self._is_judged:
            return ""
        return judge_node(node, sources, _read(node, own.host_bytes), self._backend.rounding(node))

    def _compute(self) -> None:
        for root, buffer in self._on_device.items():
            place = self._memory[root]
            buffer.write(0, place.host_bytes[_GUARD : _GUARD + root.spec.n_bytes])
        self._plan.submit()
        self._backend.synchronize()
        self._plan.check()
        root = self.node.root
        if root in self._on_device:
            self._memory[root].host_bytes[_GUARD : _GUARD + root.spec.n_bytes] = self._on_device[
                root
            ].read(0, root.spec.n_bytes)


def _read(tensor: Tensor, data: Bytes) -> NDArray[Any]:
    return read_array(data, tensor.spec, _GUARD + tensor.view_offs)


def _overwritten(node: Tensor, root: Tensor, at: int) -> str:
    what = "its own memory" if root is node.root else f"{root.name or 'a source'}"
    return f"{_op(node)} writes outside its result: {node}: byte {at} of {what} changed"


def _op(node: Tensor) -> str:
    return "" if node.op is None else node.op.name


def _written_bytes(node: Tensor, sources: Sequence[NDArray[Any]]) -> NDArray[np.bool_] | slice:
    """Which bytes of its root a node may write: a mask, or all."""
    if node.root is node or node.op is None:
        return slice(None)
    rows = node.op.written_rows(*sources)
    picked = slice(None) if rows is None else rows
    mask = np.zeros(node.root.spec.n_bytes, np.uint8)
    if node.rows_contiguous:
        row_view(mask, node.spec, node.view_offs)[picked] = 1
    else:
        elements = element_view(mask, node.spec, node.view_offs)
        elements.view(f"u{elements.itemsize}")[picked] = np.iinfo(f"u{elements.itemsize}").max
    written: NDArray[np.bool_] = mask != 0
    return written


def backends_of(graph: Graph, on: Sequence[Backend]) -> dict[Tensor, Backend]:
    """Nodes with the backend that is at their place in a list."""
    return dict(zip(graph.nodes, on, strict=True))
