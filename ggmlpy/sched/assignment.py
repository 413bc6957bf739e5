"""Assignment of nodes to backends, by ggml's rules in ggml's order.

    1  pinned      the caller's pin; the memory of the leaf that it writes, or of the state that it
                   reads; the memory of its weights (the weight of a large product may be copied to
                   a faster device)
    2  neighbours  the nodes after those of a backend, then the nodes before them, as far as it
                   supports them; first for devices with memory of their own, then for all
    3  the rest    the backend that reads most of the sources in place, of several the first; a
                   node that was not pinned moves to a preferred backend in the same memory

`backends` is in order of preference: cuda, cpu, reference. A node that none of them supports raises
KernelError. A node that its backend does not support falls back to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ggmlpy.backends.base import Backend
from ggmlpy.errors import ArgumentError, KernelError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor

_FOLLOWING = ("rope", "rope_back")  # all layers share the factors: they run where q and k are

Pin = Callable[[Tensor], str | None]  # the name of the backend that must run a node, or None
Assignment = dict[Tensor, Backend]


def assign(graph: Graph, backends: Sequence[Backend], pin: Pin | None = None) -> Assignment:
    """A backend for every computing node.

    Raises KernelError if none supports a node, ArgumentError for two backends of one name.
    """
    check_names(backends)
    nodes = [node for node in graph.nodes if node.op is not None and node.op.computes]
    assigned: Assignment = {}
    pinned = _pinned(graph, nodes, backends, pin)
    assigned.update(pinned)
    for node in nodes:
        if node not in assigned:
            home = _home(node, backends)
            if home is not None and home.supports(node):
                assigned[node] = home
    _spread(nodes, assigned, {b for b in backends if not b.buffer_type.is_host})
    _spread(nodes, assigned, set(backends))
    for node in nodes:
        if node not in assigned:
            assigned[node] = _nearest(graph, node, assigned, backends)
        elif node not in pinned:
            assigned[node] = _upgraded(node, assigned[node], backends)
    return {node: assigned[node] for node in nodes}


def check_names(backends: Sequence[Backend]) -> None:
    """Raise ArgumentError if two backends have one name: pins and tables name a backend."""
    by_name: dict[str, Backend] = {}
    for backend in backends:
        if by_name.setdefault(backend.name, backend) is not backend:
            raise ArgumentError(
                f"two backends are named {backend.name!r}: each must have a name of its own"
            )


def _pinned(
    graph: Graph, nodes: Iterable[Tensor], backends: Sequence[Backend], pin: Pin | None
) -> Assignment:
    found: Assignment = {}
    by_name = {b.name: b for b in backends}
    for node in nodes if pin is not None else ():
        assert pin is not None
        name = pin(node)
        if name is None:
            continue
        if name not in by_name:
            raise KernelError(f"{graph.name_of(node)} is pinned to {name!r}, not in use here")
        if not by_name[name].supports(node):
            raise _unsupported(graph, node, [by_name[name]])
        found[node] = by_name[name]
    return found


def _home(node: Tensor, backends: Sequence[Backend]) -> Backend | None:
    """The backend in whose memory lies the leaf that a node writes, or its state or weight.

    None for a node without any.
    """
    for tensor in (node, *node.src):
        at = tensor.root.place
        decides = tensor is node or Flag.STATE in tensor.root.flags
        if decides and at is not None and tensor.root.is_leaf:
            return _owner(at.buffer.type, backends)
    if node.op is not None and node.op.name in _FOLLOWING:
        return None
    for source in node.src:
        at = source.root.place
        if Flag.WEIGHT not in source.root.flags or at is None:
            continue
        owner = _owner(at.buffer.type, backends)
        if owner is not None and owner.buffer_type.is_host:
            devices = (b for b in backends if not b.buffer_type.is_host)
            return next((b for b in devices if b.offload_op(node) and b.supports(node)), owner)
        return owner
    return None


def _owner(memory: BufferType, backends: Sequence[Backend]) -> Backend | None:
    """The first backend that uses the memory in place."""
    return next((b for b in backends if b.supports_buffer_type(memory)), None)


def _spread(nodes: list[Tensor], assigned: Assignment, among: set[Backend]) -> None:
    """Assign to a backend the nodes after its own that it supports, then those before them."""
    for ordered in (nodes, nodes[::-1]):
        current: Backend | None = None
        for node in ordered:
            if node in assigned:
                current = assigned[node] if assigned[node] in among else None
            elif current is not None and current.supports(node):
                assigned[node] = current


def _nearest(
    graph: Graph, node: Tensor, assigned: Assignment, backends: Sequence[Backend]
) -> Backend:
    """Of the backends that support a node, the one that reads most of its sources in place."""
    able = [b for b in backends if b.supports(node)]
    if not able:
        raise _unsupported(graph, node, backends)

    def n_in_place(backend: Backend) -> int:
        memories = (_memory(source, assigned) for source in node.src)
        return sum(m is not None and backend.supports_buffer_type(m) for m in memories)

    return max(able, key=n_in_place)  # of several the first


def _memory(source: Tensor, assigned: Assignment) -> BufferType | None:
    root = source.root
    if root in assigned:
        return assigned[root].buffer_type
    return None if root.place is None else root.place.buffer.type


def _upgraded(node: Tensor, now: Backend, backends: Sequence[Backend]) -> Backend:
    """The first backend in the same memory that supports the node."""
    same = (b for b in backends if b.buffer_type is now.buffer_type and b.supports(node))
    return next(same, now)


def _unsupported(graph: Graph, node: Tensor, backends: Sequence[Backend]) -> KernelError:
    assert node.op is not None
    types = ", ".join(source.type.name for source in node.src)
    names = " or ".join(dict.fromkeys(b.name for b in backends))
    return KernelError(f"{graph.name_of(node)}: no kernel for {node.op.name}({types}) on {names}")
