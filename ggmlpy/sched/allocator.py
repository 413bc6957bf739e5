"""Where results lie: one arena per backend, memory reused as soon as its value is dead.

Best fit over free ranges, walking the nodes in running order (as ggml's graph allocator). A node
whose op allows it is written over its first source when that source dies there.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ggmlpy.backends.base import Backend
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.storage import ALIGNMENT
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.scheduler import Split, kept_roots

Key = tuple[Tensor, str]  # a root, and the backend whose arena holds this copy of it


@dataclass(slots=True)
class Layout:
    """Offsets in the arenas, with the figures that tell how good they are."""

    offsets: dict[Key, int] = field(default_factory=dict)
    arena_bytes: dict[str, int] = field(default_factory=dict)  # by backend
    live_bytes: dict[str, int] = field(default_factory=dict)  # largest set alive at one time
    total_bytes: dict[str, int] = field(default_factory=dict)  # what no reuse would take


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
    arenas: dict[str, _Arena] = {s.backend.name: _Arena() for s in splits}
    last_use = _last_uses(graph, splits)
    sizes: dict[Key, int] = {}
    dying: dict[int, list[Key]] = {}
    for key, step in last_use.items():
        dying.setdefault(step, []).append(key)

    def place(key: Key) -> None:
        sizes[key] = _padded(key[0].spec)
        layout.offsets[key] = arenas[key[1]].take(sizes[key])

    step = 0
    for split in splits:
        name = split.backend.name
        for copy in split.copies:
            if (copy.root, name) not in layout.offsets:
                place((copy.root, name))
        for node in split.nodes:
            if node.root is node:
                heir_of = _overwritable(node, split.backend, last_use, step)
                if heir_of is not None and (heir_of, name) in sizes:
                    layout.offsets[node, name] = layout.offsets[heir_of, name]
                    sizes[node, name] = sizes.pop((heir_of, name))
                else:
                    place((node, name))
            for key in dying.get(step, ()):
                if key in sizes:
                    arenas[key[1]].give_back(layout.offsets[key], sizes.pop(key))
            step += 1
    for name, arena in arenas.items():
        layout.arena_bytes[name] = arena.end
        layout.live_bytes[name] = arena.peak_live
        layout.total_bytes[name] = arena.total
    return layout


def _padded(spec: Spec) -> int:
    return -(-spec.n_bytes // ALIGNMENT) * ALIGNMENT


def _last_uses(graph: Graph, splits: Sequence[Split]) -> dict[Key, int]:
    """The step at which each root is last touched on each backend. Outputs are never done with."""
    kept = kept_roots(graph)
    last: dict[Key, int] = {}
    step = 0
    n_steps = sum(len(s.nodes) for s in splits)
    for split in splits:
        for copy in split.copies:
            if copy.source is not None:  # the source must hold out until the copy is made
                last[copy.root, copy.source.name] = max(
                    step, last.get((copy.root, copy.source.name), 0)
                )
        for node in split.nodes:
            for tensor in (*node.src, node):
                last[tensor.root, split.backend.name] = step
            step += 1
    return {key: n_steps if key[0] in kept else at for key, at in last.items()}


def _overwritable(
    node: Tensor, backend: Backend, last_use: Mapping[Key, int], step: int
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
    if _padded(first.root.spec) != _padded(node.spec):
        return None
    if last_use.get((first.root, backend.name)) != step:
        return None
    for other in node.src[1:]:
        same_bytes = other.view_offs == 0 and other.spec.same_layout(first.spec)
        if other.root is first.root and not same_bytes:
            return None
    return first.root
