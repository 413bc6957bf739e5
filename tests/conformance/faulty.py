"""The reference backend with one mistake: what the suite must find.

def too_large(work: Work) -> bool:
    if work.node.op.name != "mul_mat":
        return False
    work.run()
    work.write(1.02 * work.read(work.node))
    return True

FaultyBackend(too_large)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Places, Plan
from ggmlpy.backends.reference import ReferenceBackend, run_node
from ggmlpy.backends.step import Step
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.buffer import Bytes
from ggmlpy.graph.op import Op
from ggmlpy.graph.tensor import Tensor

Array = NDArray[Any]


@dataclass(slots=True)
class Work:
    """One node of a plan, and the memory that it works on."""

    node: Tensor
    places: Places

    @property
    def op(self) -> Op:
        assert self.node.op is not None
        return self.node.op

    def run(self) -> None:
        """As it should be."""
        run_node(self.node, self.memory)

    def memory(self, tensor: Tensor) -> tuple[Bytes, int]:
        """The bytes that a tensor lies in, guards and all, and its offset there."""
        at = self.places[tensor]
        return at.host_bytes, at.offset

    def read(self, tensor: Tensor) -> Array:
        data, offset = self.memory(tensor)
        return read_array(data, tensor.spec, offset)

    def sources(self) -> list[Array]:
        return [self.read(source) for source in self.node.src]

    def write(self, values: Array) -> None:
        """Replace the result."""
        data, offset = self.memory(self.node)
        with np.errstate(all="ignore"):
            write_array(data, self.node.spec, offset, values)


Mistake = Callable[[Work], bool]  # runs the node wrongly; False, with nothing done, for others


class FaultyBackend(ReferenceBackend):
    """Right but for the nodes that the mistake is about. `met` counts these."""

    name = "faulty"

    def __init__(self, mistake: Mistake) -> None:
        self.mistake = mistake
        self.met = 0

    def supports_step(self, step: Step) -> bool:
        """Nodes one by one: what lies inside of a fused step has no place to be wrong in."""
        return len(step.nodes) == 1 and super().supports_step(step)

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        works = [Work(node, places) for step in steps for node in step.nodes]
        return _FaultyPlan(self, works)


class _FaultyPlan(Plan):
    def __init__(self, backend: FaultyBackend, works: list[Work]) -> None:
        self._backend = backend
        self._works = works
        self._failure: GgmlpyError | None = None

    def submit(self) -> None:
        self._failure = None
        try:
            for work in self._works:
                if self._backend.mistake(work):
                    self._backend.met += 1
                else:
                    work.run()
        except GgmlpyError as error:
            self._failure = error

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure
