"""Plans of several nodes: what runs together, fused and in reused memory, has the bits of the nodes
one by one, whichever values are wanted.

Letters in shapes: E embedding, F feed-forward, T tokens, V rows of a table, N cells, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.checks import NotSupported, judge_nodes
from ggmlpy.conformance.inputs import stored
from ggmlpy.conformance.run import Prepared, computing, initial_bytes, restore, unsupported
from ggmlpy.conformance.suite import Subject
from ggmlpy.graph.buffer import Bytes, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from ggmlpy.sched.executable import Executable

E, F, T, V, N, D = 64, 96, 7, 13, 32, 32
_PASSES = ("all", "none")


class Leaves:
    """Makes leaves with random values."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def floats(self, *ne: int, type: str = "f32", flags: Flag = Flag.NONE) -> Tensor:
        leaf = stored(self.rng.uniform(-1, 1, ne[::-1]), type, ne)
        leaf.flags = flags
        return leaf

    def weight(self, *ne: int, type: str = "f32") -> Tensor:
        kind = type_of(type)
        rows = random_rows(self.rng, kind, int(np.prod(ne[1:])), ne[0])
        leaf = from_bytes(rows, kind, ne)
        leaf.flags = Flag.WEIGHT
        return leaf

    def ids(self, limit: int, *ne: int, type: str = "i32") -> Tensor:
        values = self.rng.permutation(limit)[: int(np.prod(ne))].reshape(ne[::-1])
        return from_numpy(values.astype(type.replace("i", "int")))


Wanted = Sequence[Tensor]
Maker = Callable[[Leaves], Wanted]


def _feed_forward(leaves: Leaves) -> Wanted:
    """A layer's second half: fusable throughout."""
    x = leaves.floats(E, T)  # [E, T]
    h = ops.mul(ops.rms_norm(x, 1e-5), leaves.weight(E))  # [E, T]
    up = ops.mul_mat(leaves.weight(E, F, type="q8_0"), h)  # [F, T]
    gate = ops.mul_mat(leaves.weight(E, F, type="q8_0"), h)  # [F, T]
    down = ops.mul_mat(leaves.weight(F, E, type="q4_0"), ops.swiglu_split(gate, up))  # [E, T]
    return [ops.mul(ops.rms_norm(ops.add(down, x), 1e-5), leaves.weight(E))]  # [E, T]


def _wanted_inside(leaves: Leaves) -> Wanted:
    """Values inside what could be fused are read too."""
    x = leaves.floats(E, T)  # [E, T]
    total = ops.add(x, leaves.floats(E, T))  # [E, T]
    normed = ops.rms_norm(total, 1e-5)  # [E, T]
    scaled = ops.mul(normed, leaves.weight(E))  # [E, T]
    product = ops.mul_mat(leaves.weight(E, F), scaled)  # [F, T]
    return [normed, ops.add(product, leaves.weight(F)), total, product]


def _shared_source(leaves: Leaves) -> Wanted:
    """One value with many readers, the last of which runs long after it was made."""
    x = ops.sqr(leaves.floats(E, T))  # [E, T]
    y = x
    for _ in range(9):
        y = ops.add(ops.silu(y), x)  # [E, T]
    return [ops.mul(y, x), ops.sum_rows(x)]


def _in_place_chain(leaves: Leaves) -> Wanted:
    """Each node may overwrite its source; the first one, which is read at the end, may not be."""
    x = ops.scale(leaves.floats(E, T), 1.0)  # [E, T]
    y = x
    for op in (ops.sqr, ops.silu, ops.exp, ops.neg, ops.tanh):
        y = op(y)  # [E, T]
    return [ops.sub(y, x)]


def _views(leaves: Leaves) -> Wanted:
    """Views of a computed value, and of views."""
    x = ops.scale(leaves.floats(E, T), 2.0)  # [E, T]
    heads = ops.permute(ops.reshape_3d(x, D, E // D, T), 0, 2, 1, 3)  # [D, T, H]
    first = ops.view_2d(x, D, T, x.nb[1], 0)  # [D, T]
    return [ops.cont(heads), ops.add(first, ops.view_2d(heads, D, T, heads.nb[1], heads.nb[2]))]


def _cache(leaves: Leaves) -> Wanted:
    """Rows are written to a cache, and read in the same run."""
    cache = leaves.floats(D, N, type="f16", flags=Flag.STATE)  # [D, N]
    rows = leaves.ids(N, T, type="i64")
    written = ops.set_rows(cache, leaves.floats(D, T), rows)  # [D, N]
    return [ops.mul_mat(written, leaves.floats(D, T))]  # [N, T]


def _lookup(leaves: Leaves) -> Wanted:
    """Rows of a quantised table, and the products of experts chosen by scores."""
    x = ops.get_rows(leaves.weight(E, V, type="q8_0"), leaves.ids(V, T))  # [E, T]
    scores = ops.soft_max(ops.mul_mat(leaves.weight(E, 4), x))  # [4, T]
    chosen = ops.argsort_top_k(scores, 2)  # [2, T]
    experts = leaves.weight(E, F, 4, type="q4_0")
    return [ops.mul_mat_id(experts, ops.reshape_3d(x, E, 1, T), chosen)]  # [F, 2, T]


_GRAPHS: dict[str, Maker] = {
    "feed-forward": _feed_forward,
    "wanted inside": _wanted_inside,
    "shared source": _shared_source,
    "in-place chain": _in_place_chain,
    "views": _views,
    "cache": _cache,
    "lookup and experts": _lookup,
}


@dataclass(frozen=True, slots=True)
class PlanTest:
    """A graph by its name."""

    name: str

    op = "plan"

    @property
    def id(self) -> str:
        return f"plan {self.name}"

    def nodes(self, seed: int) -> list[Tensor]:
        return computing(*_GRAPHS[self.name](Leaves(seed)))

    def check(self, subject: Subject) -> str:
        wanted = _GRAPHS[self.name](Leaves(subject.seed))
        nodes = computing(*wanted)
        reason = unsupported(subject.backend, nodes)
        if reason:
            raise NotSupported(reason)
        before = initial_bytes(nodes)
        apart = Prepared(subject.backend, nodes)
        apart.run()
        wrong = apart.wrongly_changed() or judge_nodes(subject.backend, apart, before)
        want = [apart.raw(value) for value in wanted]
        for backend in (subject.backend, *subject.others):
            for passes in _PASSES:
                if not wrong:
                    restore(before)
                    wrong = _difference(backend, wanted, want, passes)
        return wrong


def _difference(backend: Backend, wanted: Wanted, want: Sequence[Bytes], passes: str) -> str:
    """Two runs of one executable, the values of both."""
    states = [leaf for leaf in Graph(*wanted).leafs if Flag.STATE in leaf.flags]
    kept = [leaf.tobytes() for leaf in states]
    for leaf in states:
        leaf.place = Place(backend.buffer_type.allocate(leaf.spec.n_bytes))
    executable = Executable(Graph(*wanted), [backend], passes=passes)
    for run in ("first", "second"):
        for leaf, held in zip(states, kept, strict=True):
            assert leaf.place is not None
            leaf.place.buffer.write(leaf.place.offset, np.frombuffer(held, np.uint8))
        executable.run()
        for i, (value, raw) in enumerate(zip(wanted, want, strict=True)):
            if executable.raw(value).tobytes() != raw.tobytes():
                how = "with fusion" if passes == "all" else "without fusion"
                return f"value {i}, {value.op}: {run} run of one plan {how}: other bits than alone"
    return ""


TESTS = [PlanTest(name) for name in _GRAPHS]
