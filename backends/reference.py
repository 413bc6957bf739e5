"""The reference backend: runs the numpy reference of each op. The oracle of conformance tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ggmlpy.backends.base import Backend, Places, Plan
from ggmlpy.backends.step import Step
from ggmlpy.errors import AllocationError, CallbackError, GgmlpyError, IndexOutOfRange
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.buffer import Bytes, aligned_bytes
from ggmlpy.graph.count import Counts
from ggmlpy.graph.quants import has_quantizer
from ggmlpy.graph.tensor import Tensor


class ReferenceBackend(Backend):
    """Supports every op, for results of a type that can be converted from floats."""

    name = "reference"
    takes_counts = True

    def supports(self, node: Tensor) -> bool:
        return node.op is not None and has_quantizer(node.type)

    def supports_step(self, step: Step) -> bool:
        return all(map(self.supports, step.nodes))

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        return _ReferencePlan(steps, places)


BytesOf = Callable[[Tensor], tuple[Bytes, int]]  # the memory of a tensor, and its offset in it


def run_node(node: Tensor, bytes_of: BytesOf, counts: Counts | None = None) -> None:
    """Compute a node with its op's reference, at these counts or at the bounds. Raises
    IndexOutOfRange, CallbackError, AllocationError."""
    assert node.op is not None
    op = node.op.at(counts) if counts else node.op
    try:
        with np.errstate(all="ignore"):  # inf and nan are valid results
            sources = []
            for source in node.src:
                data, offset = bytes_of(source)
                spec = source.spec.at(counts) if counts else source.spec
                sources.append(read_array(data, spec, offset))
            values = op.reference(*sources)
            rows = op.written_rows(*sources)
            data, offset = bytes_of(node)
            spec = node.spec.at(counts) if counts else node.spec
            write_array(data, spec, offset, values, rows)
    except IndexOutOfRange as error:
        raise IndexOutOfRange(f"{node.name}: {error}" if node.name else str(error)) from None
    except CallbackError as error:
        named = f"{node.name}: {error}" if node.name else str(error)
        raise CallbackError(named) from error.__cause__
    except MemoryError as error:
        raise AllocationError(f"{node.name}: {error}") from error


class _ReferencePlan(Plan):
    """Runs fused steps node by node. Values inside a step are rounded to their types too."""

    def __init__(self, steps: Sequence[Step], places: Places) -> None:
        self._steps = list(steps)
        self._places = places
        self._counts: Counts | None = None  # the bounds
        self._failure: GgmlpyError | None = None

    def set_counts(self, counts: Counts) -> None:
        self._counts = counts

    def submit(self) -> None:
        self._failure = None
        try:
            for step in self._steps:
                interior = {node: aligned_bytes(node.spec.n_bytes) for node in step.interior}
                for node in step.nodes:
                    run_node(node, partial(self._bytes_of, interior), self._counts)
        except GgmlpyError as error:
            self._failure = error

    def check(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _bytes_of(self, interior: Mapping[Tensor, Bytes], tensor: Tensor) -> tuple[Bytes, int]:
        if tensor.root in interior:
            return interior[tensor.root], tensor.view_offs
        if tensor in self._places:
            at = self._places[tensor]
            return at.host_bytes, at.offset
        at = self._places[tensor.root]  # a part of another result of the step
        return at.host_bytes, at.offset + tensor.view_offs
