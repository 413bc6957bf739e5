"""A backend that computes nothing, to measure the cost of building and scheduling graphs."""

from __future__ import annotations

from collections.abc import Sequence

from ggmlpy.backends.base import Backend, Places, Plan
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import Counts
from ggmlpy.graph.tensor import Tensor


class NullBackend(Backend):
    """Supports every node and step. Results are undefined."""

    name = "null"
    takes_counts = True

    def supports(self, node: Tensor) -> bool:
        return node.op is not None

    def supports_step(self, step: Step) -> bool:
        return True

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        for step in steps:
            assert all(tensor in places for tensor in step.tensors), f"{step} lacks a place"
        return _NullPlan()


class _NullPlan(Plan):
    def set_counts(self, counts: Counts) -> None:
        pass

    def submit(self) -> None:
        pass
