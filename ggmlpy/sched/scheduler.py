"""Which backend runs which node, and what must be copied in between.

    graph  ->  assign: a backend for every node  ->  cut: runs of one backend, with their copies

Memory is followed by *root*: a tensor that owns its bytes. A view is where its root is. A root may
have a copy in the memory of several devices; a write makes the writer's copy the only valid one,
and a read on a backend that can use no valid copy brings one in at the head of its split. Backends
of one buffer type share its arena, and nothing is copied between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ggmlpy.backends.base import Backend
from ggmlpy.errors import KernelError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor

Pin = Callable[[Tensor], str | None]  # the name of the backend that must run a node, or None


@dataclass(frozen=True, slots=True)
class Copy:
    """Bring a root's bytes to the memory of the split's backend.

    `source` is the type of the arena that holds a valid copy; None: the place of the leaf itself.
    """

    root: Tensor
    source: BufferType | None


@dataclass(slots=True)
class Split:
    """Consecutive nodes of one backend; `copies` run first."""

    backend: Backend
    copies: list[Copy] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)  # computing nodes only, in graph order


def assign(
    graph: Graph, backends: Sequence[Backend], pin: Pin | None = None
) -> dict[Tensor, Backend]:
    """A backend for every computing node.

    In order: the one it is pinned to; the one whose memory its weights lie in; the one that made
    its first computed source, so that values stay put; else the first in `backends`, which is a
    list of preference. Raises KernelError if none supports a node.
    """
    assigned: dict[Tensor, Backend] = {}
    by_name = {b.name: b for b in backends}
    for node in graph.nodes:
        assert node.op is not None
        if not node.op.computes:
            continue
        wished = pin(node) if pin is not None else None
        if wished is not None:
            if wished not in by_name:
                raise KernelError(f"{graph.name_of(node)} is pinned to {wished!r}, not in use here")
            candidates = [by_name[wished]]
        else:
            candidates = [*_preferred(node, assigned, by_name), *backends]
        chosen = next((b for b in candidates if b.supports(node)), None)
        if chosen is None:
            types = ", ".join(s.type.name for s in node.src)
            names = " or ".join(dict.fromkeys(b.name for b in candidates))
            raise KernelError(
                f"{graph.name_of(node)}: no kernel for {node.op.name}({types}) on {names}"
            )
        assigned[node] = chosen
    return assigned


def _preferred(
    node: Tensor, assigned: Mapping[Tensor, Backend], by_name: Mapping[str, Backend]
) -> list[Backend]:
    """Backends that hold what the node reads: weights first, then computed values."""
    homes = [
        by_name[s.root.place.buffer.type.device]
        for s in node.src
        if s.root.place is not None
        and Flag.WEIGHT in s.root.flags
        and s.root.place.buffer.type.device in by_name
    ]
    return homes + [assigned[s.root] for s in node.src if s.root in assigned]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Splits in running order, and in which memory each root's final bytes are after a run."""

    splits: list[Split]
    holders: dict[Tensor, list[BufferType]]


def cut(graph: Graph, assigned: Mapping[Tensor, Backend]) -> Schedule:
    """The graph as splits in running order, with the copies that each needs first.

    Raises KernelError where a backend would have to work on state that it cannot read in place.
    """
    splits: list[Split] = []
    valid: dict[Tensor, list[BufferType]] = {}  # memories with a valid copy, for roots that move
    for node in graph.nodes:
        backend = assigned.get(node)
        if backend is None:
            continue
        if not splits or splits[-1].backend is not backend:
            splits.append(Split(backend))
        split = splits[-1]
        for root in dict.fromkeys(t.root for t in (*node.src, node) if t.root is not node):
            _bring(root, split, valid)
        split.nodes.append(node)
        if not lies_in_place(node.root, backend):
            valid[node.root] = [backend.buffer_type]
    return Schedule(splits, valid)


def _bring(root: Tensor, split: Split, valid: dict[Tensor, list[BufferType]]) -> None:
    """Make the root's bytes valid on the split's backend, by a copy if they are not."""
    if lies_in_place(root, split.backend):
        return
    if Flag.STATE in root.flags:
        raise KernelError(f"{root} is state, in memory that {split.backend.name} does not read")
    holders = valid.setdefault(root, [])
    memory = split.backend.buffer_type
    if memory in holders:
        return
    split.copies.append(Copy(root, holders[0] if holders else None))
    holders.append(memory)


def kept_roots(graph: Graph) -> set[Tensor]:
    """Roots whose bytes are still there when the run is over: those of outputs."""
    kept = {t.root for t in graph.outputs}
    return kept | {t.root for t in graph.nodes if Flag.OUTPUT in t.flags}


def wanted_roots(graph: Graph, splits: Sequence[Split]) -> list[set[Tensor]]:
    """For each split those roots that it writes and that are read after it has run: by other
    splits, and as outputs."""
    read = [{source.root for node in split.nodes for source in node.src} for split in splits]
    n_readers = Counter(root for roots in read for root in roots)
    kept = kept_roots(graph)
    wanted = []
    for split, roots in zip(splits, read, strict=True):
        written = {node.root for node in split.nodes}
        wanted.append({r for r in written if r in kept or n_readers[r] > (r in roots)})
    return wanted


def lies_in_place(root: Tensor, backend: Backend) -> bool:
    """A leaf that the backend reads where it is, or a weight, of which it keeps a copy."""
    if not root.is_leaf or root.place is None:
        return False
    return backend.supports_buffer_type(root.place.buffer.type) or Flag.WEIGHT in root.flags
