"""The oracle: every op by its numpy reference, slowly and plainly."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from ggmlpy.backends.base import Backend, Places, Plan
from ggmlpy.errors import AllocationError
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.quants import has_quantizer
from ggmlpy.graph.tensor import Tensor


class ReferenceBackend(Backend):
    """Runs whatever has a numpy reference and a result type that numpy can write."""

    name = "reference"

    def supports(self, node: Tensor) -> bool:
        return node.op is not None and has_quantizer(node.type)

    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> Plan:
        return _ReferencePlan(nodes, places)


class _ReferencePlan(Plan):
    def __init__(self, nodes: Sequence[Tensor], places: Places) -> None:
        self._nodes = list(nodes)
        self._places = places

    def run(self) -> None:
        with np.errstate(all="ignore"):  # inf and nan are values here, not accidents
            for node in self._nodes:
                try:
                    self._run_node(node)
                except MemoryError as error:
                    raise AllocationError(f"{node.name}: {error}") from error

    def _run_node(self, node: Tensor) -> None:
        assert node.op is not None
        sources = []
        for source in node.src:
            at = self._places[source]
            sources.append(read_array(at.host_bytes, source.spec, at.offset))
        values = node.op.reference(*sources)
        rows = node.op.written_rows(*sources)
        at = self._places[node]
        write_array(at.host_bytes, node.spec, at.offset, values, rows)
