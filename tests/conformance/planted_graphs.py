"""Mistakes of schedulers, allocators, passes and plans, planted to be found by random graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from ggmlpy.backends.base import Backend, Places
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.cpu.builder import PlanBuilder
from ggmlpy.backends.cpu.kernel import RECORD_BYTES
from ggmlpy.backends.cpu.threads import ThreadPool
from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched import allocator, executable, passes
from ggmlpy.sched.executable import Executable
from ggmlpy.sched.scheduler import Copy, Split, _Copies
from ggmlpy.sched.transfers import Part

Patch = pytest.MonkeyPatch


def freed_early(patch: Patch) -> None:
    """The allocator ends the life of a value one step before its last reader."""
    right = allocator._last_uses

    def last_uses(graph: Graph, splits: Sequence[Split]) -> dict[allocator.Key, int]:
        n_steps = sum(len(split.steps) for split in splits)
        found = right(graph, splits)
        return {key: last - (0 < last < n_steps) for key, last in found.items()}

    patch.setattr(allocator, "_last_uses", last_uses)


def copy_left_out(patch: Patch) -> None:
    """Copies between backends of values that were computed are not made."""
    right = Executable._transfer

    def transfer(self: Executable, copy: Copy, target: Backend) -> Callable[[], None]:
        made = right(self, copy, target)
        return made if copy.root.is_leaf else lambda: None

    patch.setattr(Executable, "_transfer", transfer)


def fused_although_read(patch: Patch) -> None:
    """Passes fuse values that something else reads. These have memory, but no step writes it."""

    def run_passes(
        graph: Graph, splits: Sequence[Split], chosen: str | Iterable[str] | None = None
    ) -> None:
        passes.run_passes(graph, splits, chosen)
        for split in splits:
            split.steps = [_with_memory(step) for step in split.steps]

    def is_own(self: object, value: Tensor, step: Step) -> bool:
        return value.root is value

    patch.setattr(passes._Fusible, "_is_own", is_own)
    patch.setattr(executable, "run_passes", run_passes)


def _with_memory(step: Step) -> Step:
    inner = {f"inner {i}": value for i, value in enumerate(step.interior)}
    return replace(step, results={**step.results, **inner})


def barrier_left_out(patch: Patch) -> None:
    """A thread begins with a record before the others have ended the one before it.

    The shares run one after another, in an order that threads without this barrier could have.
    """
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

    def run(self: ThreadPool, plan: int, n_nodes: int, n_threads: int) -> None:
        for first in range(0, n_nodes, 2):
            for share in range(n_threads):
                for node in range(first, min(first + 2, n_nodes)):
                    record = plan + node * RECORD_BYTES
                    code = ctypes.c_int64.from_address(record).value
                    kernel(code)(record, share, n_threads)

    patch.setattr(ThreadPool, "run", run)


def stale_activations(patch: Patch) -> None:
    """Activations quantised for one product are used for the next, although x was overwritten."""
    patch.setattr(PlanBuilder, "_forget_overwritten", lambda self, node: None)


def output_reused(patch: Patch) -> None:
    """The allocator gives the memory of wanted values to later ones."""
    patch.setattr(allocator, "kept_roots", lambda graph: set())


def stale_copy(patch: Patch) -> None:
    """A copy of a value is read after another backend has written to that value."""
    right = _Copies.note_write

    def note_write(self: _Copies, root: Tensor, backend: Backend) -> None:
        holders = list(self.holders.get(root, ()))
        right(self, root, backend)
        if not root.is_leaf:
            self.holders[root] = list(dict.fromkeys([*self.holders[root], *holders]))

    patch.setattr(_Copies, "note_write", note_write)


def not_copied_back(patch: Patch) -> None:
    """A leaf that a device wrote to in memory of its own keeps its old values."""
    right = Executable._return

    def return_(self: Executable, leaf: Tensor, memory: BufferType) -> Part:
        return right(self, leaf, memory)[0], lambda: None

    patch.setattr(Executable, "_return", return_)


def fused_over_a_write(patch: Patch) -> None:
    """Passes fuse nodes although the last writes to memory that the first reads."""
    patch.setattr(passes, "_writes_apart", lambda step: True)


class Damaging(CpuBackend):
    """After each step with a product the byte `at` of its result's memory is another: -1 is the one
    before it, None the last one of the result."""

    def __init__(self, at: int | None) -> None:
        super().__init__(1)
        self._at = at

    def supports_step(self, step: Step) -> bool:
        return False

    def plan(self, steps: Sequence[Step], places: Places) -> CpuPlan:
        plan = super().plan(steps, places)
        right = plan.submit
        products = [step.node for step in steps if step.op == "mul_mat"]

        def submit() -> None:
            right()
            for node in products:
                place = places[node]
                at = node.spec.n_bytes - 1 if self._at is None else self._at
                place.host_bytes[place.offset + at] ^= 1

        plan.submit = submit  # type: ignore[method-assign]
        return plan


PLANTED: dict[str, tuple[Callable[[Patch], None], str]] = {
    "freed early": (freed_early, "alone"),
    "copy left out": (copy_left_out, "split"),
    "fused although read": (fused_although_read, "alone"),
    "barrier left out": (barrier_left_out, "alone"),
    "stale activations": (stale_activations, "alone"),
    "output reused": (output_reused, "alone"),
    "stale copy": (stale_copy, "split"),
    "not copied back": (not_copied_back, "split"),
    "fused over a write": (fused_over_a_write, "alone"),
}
