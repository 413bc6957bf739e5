"""Places and schedules like any backend and computes nothing: the cost of everything around."""

from __future__ import annotations

from collections.abc import Sequence, Set

from ggmlpy.backends.base import Backend, Places, Plan
from ggmlpy.graph.tensor import Tensor


class NullBackend(Backend):
    """Supports every node; results are whatever the memory holds."""

    name = "null"

    def supports(self, node: Tensor) -> bool:
        return node.op is not None

    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> Plan:
        for node in nodes:
            assert node in places, f"{node} has no place"
            assert all(source in places for source in node.src), f"a source of {node} has no place"
        return _NullPlan()


class _NullPlan(Plan):
    def submit(self) -> None:
        pass
