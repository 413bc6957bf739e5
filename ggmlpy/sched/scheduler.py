"""Splits: consecutive nodes that run on one backend, and the copies between them.

    graph  ->  assign: a backend for every node  ->  cut: splits of one backend, with their copies

Copies are made of *roots*, the tensors that own memory; a view lies where its root does. A root may
have valid copies in the memory of several devices. A write leaves only the writer's copy valid. A
backend that reads a root and cannot use any valid copy gets one at the start of its split. Backends
of one buffer type share its arena, and nothing is copied between them. A leaf whose copy a device
wrote to is copied back to its place: before a split that uses it there, and at the end of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ggmlpy.backends.base import Backend
from ggmlpy.backends.step import Step
from ggmlpy.errors import KernelError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a root to the memory of the split's backend, or a leaf back to its place.

    `source` is the type of the arena that holds a valid copy. None: the leaf's own place; a weight
    or state is copied for these nodes, and takes up memory only while they run.
    """

    root: Tensor
    source: BufferType | None


@dataclass(slots=True)
class Split:
    """Consecutive nodes of one backend; `copies` run first."""

    backend: Backend
    copies: list[Copy] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def nodes(self) -> list[Tensor]:
        """Computing nodes only, in graph order."""
        return [node for step in self.steps for node in step.nodes]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Splits in running order, and the memory in which each root is valid after a run."""

    splits: list[Split]
    holders: dict[Tensor, list[BufferType]]
    uploads: dict[Tensor, list[BufferType]]  # leaves that are copied when a run starts
    returns: dict[Tensor, BufferType]  # leaves to copy back at the end of a run, and from where
    fetched: set[Tensor]  # weights of devices that the host reads: copied once, not in each run


def cut(graph: Graph, assigned: Mapping[Tensor, Backend]) -> Schedule:
    """Cut the graph into splits in running order, with the copies that each needs first.

    State that a backend cannot read in place is copied for its nodes. Raises KernelError if a node
    writes state in memory that its backend cannot use.
    """
    splits: list[Split] = []
    copies = _Copies()
    for node in graph.nodes:
        backend = assigned.get(node)
        if backend is None:
            continue
        if not splits or splits[-1].backend is not backend:
            splits.append(Split(backend))
        split = splits[-1]
        _check_state(graph, node, backend)
        for root in dict.fromkeys(t.root for t in (*node.src, node) if t.root is not node):
            copies.bring(root, split)
        split.steps.append(Step.of(node))
        copies.note_write(node.root, backend)
    return Schedule(splits, copies.holders, copies.uploads, copies.returns, copies.fetched)


def _check_state(graph: Graph, node: Tensor, backend: Backend) -> None:
    """Raise KernelError for a node that writes state in memory that its backend cannot use."""
    root = node.root
    if Flag.STATE in root.flags and root.is_leaf and not lies_in_place(root, backend):
        assert node.op is not None
        memory = "no memory" if root.place is None else f"memory of {root.place.buffer.type.name}"
        raise KernelError(
            f"{graph.name_of(node)} ({node.op.name}) writes {graph.name_of(root)}, state in"
            f" {memory}, and runs on {backend.name}, which cannot write there"
        )


def homes(graph: Graph, schedule: Schedule) -> dict[Tensor, str]:
    """The name of the backend of each node, and of the memory of each leaf.

    Views and leafs of inputs are left out.
    """
    found = {node: s.backend.name for s in schedule.splits for node in s.nodes}
    for leaf in graph.leafs:
        if leaf.place is not None and Flag.INPUT not in leaf.flags:
            found[leaf] = leaf.place.buffer.type.name
    return found


def describe_splits(graph: Graph, schedule: Schedule) -> str:
    """One line per split: its backend, its number of nodes, and the copies before it.

    Inputs that are copied to other memory when a run starts have lines before those.
    """
    lines = []
    by_memory: dict[str, list[str]] = {}
    for leaf, memories in schedule.uploads.items():
        for memory in memories:
            by_memory.setdefault(memory.name, []).append(graph.name_of(leaf))
    for name, leafs in by_memory.items():
        lines.append(f"inputs to {name}: {', '.join(leafs)}")
    for i, split in enumerate(schedule.splits):
        line = f"split {i}: {len(split.nodes)} nodes on {split.backend.name}"
        for copy in split.copies:
            source = copy.source
            if source is None:
                assert copy.root.place is not None
                source = copy.root.place.buffer.type
            line += f", copies {graph.name_of(copy.root)} from {source.name}"
        lines.append(line)
    return "\n".join(lines)


class _Copies:
    """Where roots are valid while the nodes run one after another, and the copies between."""

    def __init__(self) -> None:
        self.holders: dict[Tensor, list[BufferType]] = {}  # beside a leaf's own place
        self.uploads: dict[Tensor, list[BufferType]] = {}
        self.returns: dict[Tensor, BufferType] = {}  # leaves that are not valid at their own place
        self.fetched: set[Tensor] = set()  # weights of devices that the host reads
        self._changed: set[Tensor] = set()  # leaves whose own place was written to

    def bring(self, root: Tensor, split: Split) -> None:
        """Make the root valid in memory that the split's backend can use, by a copy if needed."""
        memory = split.backend.buffer_type
        if lies_in_place(root, split.backend):
            source = self.returns.pop(root, None)
            if source is not None:
                split.copies.append(Copy(root, source))
                self._changed.add(root)
            return
        holders = self.holders.setdefault(root, [])
        if memory in holders:
            return
        if not root.is_leaf or root in self.returns:
            split.copies.append(Copy(root, holders[0]))
        elif Flag.WEIGHT in root.flags and memory.is_host:
            self.fetched.add(root)
        elif (Flag.WEIGHT | Flag.STATE) & root.flags or root in self._changed:
            split.copies.append(Copy(root, None))
        else:
            self.uploads.setdefault(root, []).append(memory)
        holders.append(memory)

    def note_write(self, root: Tensor, backend: Backend) -> None:
        """Record that a node of the backend writes to the root."""
        if lies_in_place(root, backend):
            self._changed.add(root)
            self.holders.pop(root, None)
            return
        if root.is_leaf:
            self.returns[root] = backend.buffer_type
        self.holders[root] = [backend.buffer_type]


def kept_roots(graph: Graph) -> set[Tensor]:
    """Roots that keep their memory until the end of a run: those of outputs."""
    kept = {t.root for t in graph.outputs}
    return kept | {t.root for t in graph.nodes if Flag.OUTPUT in t.flags}


def read_after(graph: Graph, splits: Sequence[Split]) -> list[set[Tensor]]:
    """For each split the roots that it writes and that other splits read, or that are outputs."""
    read = [{source.root for node in split.nodes for source in node.src} for split in splits]
    n_readers = Counter(root for roots in read for root in roots)
    kept = kept_roots(graph)
    after = []
    for split, roots in zip(splits, read, strict=True):
        written = {node.root for node in split.nodes}
        after.append({r for r in written if r in kept or n_readers[r] > (r in roots)})
    return after


def lies_in_place(root: Tensor, backend: Backend) -> bool:
    """Whether it is a leaf that the backend can use at its own place."""
    at = root.place if root.is_leaf else None
    return at is not None and backend.supports_buffer_type(at.buffer.type)
