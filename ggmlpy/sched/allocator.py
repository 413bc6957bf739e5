"""Where results lie: one arena per buffer type, memory reused as soon as its value is dead.

Best fit over free ranges, walking the steps in running order (as ggml's graph allocator). A result
is written over an operand where the step allows it and nothing reads the operand later. A step's
other operands last until it is over, and values inside a fused step get no memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.scheduler import Split, kept_roots

Key = tuple[Tensor, BufferType]  # a root, and the memory whose arena holds this copy of it


@dataclass(slots=True)
class Layout:
    """Offsets in the arenas, with the figures that tell how good they are."""

    offsets: dict[Key, int] = field(default_factory=dict)
    arena_bytes: dict[BufferType, int] = field(default_factory=dict)
    live_bytes: dict[BufferType, int] = field(default_factory=dict)  # largest set alive at one time
    total_bytes: dict[BufferType, int] = field(default_factory=dict)  # what no reuse would take


class _Arena:
    """Offsets handed out and taken back; `end` grows only when no free range fits."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # (offset, n_bytes), by offset, never touching
        self.end = 0
        self.live = self.peak_live = self.total = 0

    def take(self, n_bytes: int) -> int:
        self.live += n_bytes
        self.total += n_bytes
        self.peak_live = max(self.peak_live, self.live)
        fitting = [(size, offset) for offset, size in self._free if size >= n_bytes]
        if fitting:
            size, offset = min(fitting)
            at = bisect.bisect_left(self._free, (offset, 0))
            rest = [(offset + n_bytes, size - n_bytes)] if size > n_bytes else []
            self._free[at : at + 1] = rest
            return offset
        # A free range at the end is extended rather than left behind as too small.
        at_end = bool(self._free) and sum(self._free[-1]) == self.end
        offset = self._free.pop()[0] if at_end else self.end
        self.end = offset + n_bytes
        return offset

    def give_back(self, offset: int, n_bytes: int) -> None:
        self.live -= n_bytes
        at = bisect.bisect_left(self._free, (offset, 0))
        if at < len(self._free) and offset + n_bytes == self._free[at][0]:
            n_bytes += self._free.pop(at)[1]
        if at > 0 and sum(self._free[at - 1]) == offset:
            offset, before = self._free.pop(at - 1)
            n_bytes += before
            at -= 1
        self._free.insert(at, (offset, n_bytes))


def allocate(graph: Graph, splits: Sequence[Split]) -> Layout:
    """Place the results of every step, and every copy that a split brings in."""
    layout = Layout()
    arenas: dict[BufferType, _Arena] = {s.backend.buffer_type: _Arena() for s in splits}
    sizes: dict[Key, int] = {}
    ends: dict[int, list[Key]] = {}  # by the step after which nothing reads them
    for key, at in _last_uses(graph, splits).items():
        ends.setdefault(at, []).append(key)

    def place(key: Key) -> None:
        sizes[key] = key[1].tensor_bytes(key[0].spec)
        layout.offsets[key] = arenas[key[1]].take(sizes[key])

    def place_result(step: Step, name: str, memory: BufferType, dying: Sequence[Key]) -> None:
        result = step.results[name]
        if result.root is not result:
            return
        for root in _overwritable(step, name, memory):
            if (root, memory) in dying and (root, memory) in sizes:
                layout.offsets[result, memory] = layout.offsets[root, memory]
                sizes[result, memory] = sizes.pop((root, memory))
                return
        place((result, memory))

    i_step = 0
    for split in splits:
        memory = split.backend.buffer_type
        for copy in split.copies:
            if (copy.root, memory) not in layout.offsets:
                place((copy.root, memory))
        for step in split.steps:
            dying = ends.get(i_step, ())
            for result in step.results:
                place_result(step, result, memory, dying)
            for key in dying:
                if key in sizes:
                    arenas[key[1]].give_back(layout.offsets[key], sizes.pop(key))
            i_step += 1
    for memory, arena in arenas.items():
        layout.arena_bytes[memory] = arena.end
        layout.live_bytes[memory] = arena.peak_live
        layout.total_bytes[memory] = arena.total
    return layout


def _last_uses(graph: Graph, splits: Sequence[Split]) -> dict[Key, int]:
    """The step at which each root is last touched in each memory. Outputs are never done with."""
    kept = kept_roots(graph)
    last: dict[Key, int] = {}
    i_step = 0
    n_steps = sum(len(s.steps) for s in splits)
    for split in splits:
        for copy in split.copies:
            if copy.source is not None:  # the source must hold out until the copy is made
                last[copy.root, copy.source] = max(i_step, last.get((copy.root, copy.source), 0))
        for step in split.steps:
            for tensor in step.tensors:
                last[tensor.root, split.backend.buffer_type] = i_step
            i_step += 1
    return {key: n_steps if key[0] in kept else at for key, at in last.items()}


def _overwritable(step: Step, result: str, memory: BufferType) -> Iterator[Tensor]:
    """Roots that a result may be written over where nothing reads them after the step.

    The step allows it for an operand, which has the result's layout and owns its bytes. No other
    operand has some of them a little further on, of which one thread would read what another has
    overwritten.
    """
    spec = step.results[result].spec
    n_bytes = memory.tensor_bytes(spec)
    for name in step.in_place.get(result, ()):
        over = step.operands[name]
        if over.root.is_leaf or memory.tensor_bytes(over.root.spec) != n_bytes:
            continue
        here = [x for x in step.operands.values() if x.root is over.root]
        if all(x.view_offs == 0 and x.spec.same_layout(spec) for x in here):
            yield over.root
