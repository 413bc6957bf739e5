"""Checks of the memory that nodes write to, made once per plan and for all backends.

A node that computes, and whose op has `view_of` (cpy, set_rows), writes into existing memory. That
memory must be writable, and must not overlap the node's other sources.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.exceptions import TooHardError
from numpy.typing import NDArray

from ggmlpy.errors import WriteError
from ggmlpy.graph.buffer import ALIGNMENT, HostBuffer
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor

_MAX_WORK = 100_000  # steps of numpy's search for a shared byte: about a millisecond

Box = list[tuple[int, int]]  # (count, byte stride) from the innermost on


def check_writes(graph: Graph) -> None:
    """Raise WriteError for a node that writes into a weight, into read-only memory, or into memory
    that it also reads.

    A copy of a tensor onto exactly itself is allowed, where element i comes from element i.
    """
    for node in graph.nodes:
        assert node.op is not None
        if node.op.computes and node.op.view_of is not None:
            _check_write(graph, node, node.op.view_of)


def _check_write(graph: Graph, node: Tensor, target: int) -> None:
    assert node.op is not None
    names = node.op.source_names(len(node.src))
    what = f"{graph.name_of(node)} ({node.op.name}): {names[target]}"
    reason = _why_fixed(node.root)
    if reason:
        raise WriteError(
            f"{what} lies in {graph.name_of(node.root)}, {reason}: it must lie in a leaf that may"
            " change, as of ggmlpy.zeros or ggmlpy.from_numpy of a writable array"
        )
    if _overlaps_itself(node):
        raise WriteError(f"{what} has elements that share memory: each must have its own")
    for i, source in enumerate(node.src):
        if i == target or not share_memory(source, node):
            continue
        may_be_same = i == 0 and node.op.in_place
        if not (may_be_same and _same_elements(source, node)):
            allowed = ", or be the same elements" if may_be_same else ""
            raise WriteError(f"{what} and {names[i]} share memory: they must lie apart{allowed}")


def _why_fixed(root: Tensor) -> str:
    """Why a leaf's memory may not be written to; empty where it may."""
    if not root.is_leaf:
        return ""
    if Flag.WEIGHT in root.flags:
        return "a weight"
    buffer = None if root.place is None else root.place.buffer
    fixed = isinstance(buffer, HostBuffer) and not buffer.data.flags.writeable
    return "read-only memory" if fixed else ""


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether some byte belongs to an element of both.

    Exact, except for strides for which the search takes too long: these count as overlapping.
    """
    if a.root is not b.root and (a.root.place is None or b.root.place is None):
        return False  # values of the graph, and leafs without memory yet, do not overlap
    if _devices_differ(a, b):
        return False
    start_a, start_b = _start(a), _start(b)
    if start_a + a.spec.n_bytes <= start_b or start_b + b.spec.n_bytes <= start_a:
        return False
    return _boxes_meet(start_a, _box(a), start_b, _box(b))


def _devices_differ(a: Tensor, b: Tensor) -> bool:
    """Whether they lie in memory of different devices, whose addresses cannot be compared."""
    if a.root is b.root or a.root.place is None or b.root.place is None:
        return False
    types = a.root.place.buffer.type, b.root.place.buffer.type
    return types[0] is not types[1] and not (types[0].is_host and types[1].is_host)


def _start(tensor: Tensor) -> int:
    """The address of the first element; of a tensor without memory, relative to its root."""
    place = tensor.root.place
    return (ALIGNMENT if place is None else place.address) + tensor.view_offs


def _box(tensor: Tensor) -> Box:
    """The tensor's byte extents in the fewest dimensions: equal for equal elements."""
    spec = tensor.spec
    counts = (spec.ne[0] // spec.type.block_size, *spec.ne[1:])
    box = [(spec.type.type_size, 1)]
    for n, stride in zip(counts, spec.nb, strict=True):
        inner, step = box[-1]
        if stride == inner * step:
            box[-1] = (inner * n, step)
        elif n > 1:
            box.append((n, stride))
    return box


def _same_elements(a: Tensor, b: Tensor) -> bool:
    """Whether element i of both is the same bytes, for every i. They share memory."""
    return a.type is b.type and _start(a) == _start(b) and _box(a) == _box(b)


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether some byte belongs to two elements.

    For each dimension, tests whether index 0, with all of the inner dimensions, overlaps any of the
    higher indices: strides are constant, so this finds every overlap.
    """
    start, box = _start(tensor), _box(tensor)
    if math.prod(n for n, _ in box) > tensor.spec.n_bytes:
        return True
    return any(
        _boxes_meet(start, box[:d], start + stride, [*box[:d], (n - 1, stride)])
        for d, (n, stride) in enumerate(box)
        if d > 0
    )


def _boxes_meet(start_a: int, a: Box, start_b: int, b: Box) -> bool:
    try:
        x, y = _bytes_at(start_a, a), _bytes_at(start_b, b)
        return np.shares_memory(x, y, _MAX_WORK)  # type: ignore[arg-type]  # the stub: -1 or 0
    except (TooHardError, ValueError):  # ValueError: more elements than numpy can count
        return True


class _Interface:
    def __init__(self, address: int, box: Box) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, True),
            "shape": tuple(n for n, _ in box),
            "strides": tuple(stride for _, stride in box),
        }


def _bytes_at(address: int, box: Box) -> NDArray[Any]:
    """An array at these addresses, for numpy's overlap search. There may be no memory there."""
    return np.asarray(_Interface(address, box))
