"""Where results lie: one arena per buffer type, memory reused as soon as its value is dead.

Best fit over free ranges, walking the nodes in running order (as ggml's graph allocator). A node
whose op allows it is written over its first source when that source dies there.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """Place every computed root, and every copy that a split brings in."""
    layout = Layout()
    arenas: dict[BufferType, _Arena] = {s.backend.buffer_type: _Arena() for s in splits}
    last_use = _last_uses(graph, splits)
    sizes: dict[Key, int] = {}
    dying: dict[int, list[Key]] = {}
    for key, step in last_use.items():
        dying.setdefault(step, []).append(key)

    def place(key: Key) -> None:
        sizes[key] = key[1].tensor_bytes(key[0].spec)
        layout.offsets[key] = arenas[key[1]].take(sizes[key])

    step = 0
    for split in splits:
        memory = split.backend.buffer_type
        for copy in split.copies:
            if (copy.root, memory) not in layout.offsets:
                place((copy.root, memory))
        for node in split.nodes:
            if node.root is node:
                heir_of = _overwritable(node, memory, last_use, step)
                if heir_of is not None and (heir_of, memory) in sizes:
                    layout.offsets[node, memory] = layout.offsets[heir_of, memory]
                    sizes[node, memory] = sizes.pop((heir_of, memory))
                else:
                    place((node, memory))
            for key in dying.get(step, ()):
                if key in sizes:
                    arenas[key[1]].give_back(layout.offsets[key], sizes.pop(key))
            step += 1
    for memory, arena in arenas.items():
        layout.arena_bytes[memory] = arena.end
        layout.live_bytes[memory] = arena.peak_live
        layout.total_bytes[memory] = arena.total
    return layout


def _last_uses(graph: Graph, splits: Sequence[Split]) -> dict[Key, int]:
    """The step at which each root is last touched in each memory. Outputs are never done with."""
    kept = kept_roots(graph)
    last: dict[Key, int] = {}
    step = 0
    n_steps = sum(len(s.nodes) for s in splits)
    for split in splits:
        for copy in split.copies:
            if copy.source is not None:  # the source must hold out until the copy is made
                last[copy.root, copy.source] = max(step, last.get((copy.root, copy.source), 0))
        for node in split.nodes:
            for tensor in (*node.src, node):
                last[tensor.root, split.backend.buffer_type] = step
            step += 1
    return {key: n_steps if key[0] in kept else at for key, at in last.items()}


def _overwritable(
    node: Tensor, memory: BufferType, last_use: Mapping[Key, int], step: int
) -> Tensor | None:
    """The root that `node` may be written over, or None.

    Its op works element by element, source 0 has the result's layout and owns its bytes, and
    nothing else reads them from here on: not as another source that lies a little further on, of
    which one thread would read what another has overwritten.
    """
    assert node.op is not None
    if not node.op.in_place:
        return None
    first = node.src[0]
    if first.root.is_leaf or first.view_offs != 0 or not first.spec.same_layout(node.spec):
        return None
    if memory.tensor_bytes(first.root.spec) != memory.tensor_bytes(node.spec):
        return None
    if last_use.get((first.root, memory)) != step:
        return None
    for other in node.src[1:]:
        same_bytes = other.view_offs == 0 and other.spec.same_layout(first.spec)
        if other.root is first.root and not same_bytes:
            return None
    return first.root
