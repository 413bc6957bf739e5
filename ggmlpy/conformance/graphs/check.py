"""Checking a program on backends: scheduled as a whole, and node by node.

The whole graph runs as the scheduler has it: split between the backends, fused, in memory that is
reused, with only what is wanted kept. Then it runs node by node (stepwise.py) on the same backends,
or on others that promise the same bits. What is wanted, and every leaf that runs write to, must
have the same bits after each run; and each node is judged by its op's reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.graphs.fit import fitted, home_of, pins_of
from ggmlpy.conformance.graphs.leaves import (
    LeafValues,
    changes,
    make_leaf,
    placeless_leaf,
    places_of,
)
from ggmlpy.conformance.graphs.program import Node, Program, build, wanted
from ggmlpy.conformance.graphs.stepwise import POISON, Stepwise, backends_of, guarded
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.arrays import read_array
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.executable import ArenaPool, Executable

_MAX_MESSAGE = 300  # characters of an error


@dataclass(frozen=True, slots=True)
class Ways:
    """How programs are run.

    backends    one, or two between which nodes are split by their pins
    one_by_one  the backends that run nodes one by one instead of each of these, for the same bits
    passes      of the run as a whole
    """

    backends: tuple[Backend, ...]
    one_by_one: tuple[Backend, ...] = ()
    passes: str | Sequence[str] = "all"

    def alone(self, backend: Backend) -> Backend:
        """The backend that runs this one's nodes one by one."""
        return self.one_by_one[self.backends.index(backend)] if self.one_by_one else backend


def check_program(
    program: Program,
    backends: Sequence[Backend],
    *,
    one_by_one: Sequence[Backend] = (),
    passes: str | Sequence[str] = "all",
    judged: bool = True,
    is_fitted: bool = False,
) -> str:
    """Empty, or what is wrong, beginning with two or three words that tell faults apart.

    Nodes that no backend supports become leaves, unless the program is `fitted` to them already.
    """
    ways = Ways(tuple(backends), tuple(one_by_one), passes)
    if not is_fitted:
        program, _ = fitted(program, ways.backends)
    try:
        return _compare(program, ways, judged)
    except GgmlpyError as error:  # what could be built must run
        return f"refused when run: {told(error)}"
    except Exception as error:
        return f"failed when run: {told(error)}"


def told(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first[:_MAX_MESSAGE]}"


def _compare(program: Program, ways: Ways, judged: bool) -> str:
    values = LeafValues()
    scheduled = _Scheduled(program, ways, values)
    if not scheduled.graph.nodes:
        return ""
    stepwise = _OneByOne(program, ways, values, scheduled)
    for run in range(program.n_runs):
        scheduled.run(run)
        wrong = stepwise.run(run, judged and run == 0)
        if wrong:
            return wrong
        for tensor, other in zip(scheduled.results, stepwise.results, strict=True):
            wrong = _difference(tensor, scheduled.read(tensor), stepwise.read(other))
            if wrong:
                return f"{wrong} from those of its nodes run one by one, in run {run}"
    return ""


class _Scheduled:
    """The graph as an executable."""

    def __init__(self, program: Program, ways: Ways, values: LeafValues) -> None:
        backends = ways.backends
        self._values = values
        self._leaves = {node.name: node for node in program.nodes if node.is_leaf}
        places = places_of(program, lambda node: home_of(node, backends))
        tensors = build(program, lambda node: make_leaf(node, values(node, 0), places[node.name]))
        self.graph = Graph(*wanted(program, tensors))
        self.results = _results(self.graph)
        pins = pins_of(program, tensors, backends) if len(backends) > 1 else {}
        self._pool = _PoisonedArenas()
        self._executable = Executable(
            self.graph, backends, pins.get, self._pool, passes=ways.passes
        )

    @property
    def assigned(self) -> dict[Tensor, Backend]:
        """The backend of each node that computes."""
        splits = self._executable.schedule.splits
        return {node: split.backend for split in splits for node in split.nodes}

    def run(self, run: int) -> None:
        self._pool.poison()
        if run:
            _refill(self.graph, self._leaves, self._values, run)
        self._executable.run()

    def read(self, tensor: Tensor) -> Bytes:
        return self._executable.raw(tensor)


class _OneByOne:
    """The same graph, its nodes run one by one on the backends that the scheduler chose."""

    def __init__(
        self, program: Program, ways: Ways, values: LeafValues, scheduled: _Scheduled
    ) -> None:
        self._values = values
        self._leaves = {node.name: node for node in program.nodes if node.is_leaf}
        tensors = build(program, lambda node: _guarded_leaf(node, values(node, 0)))
        self.graph = Graph(*wanted(program, tensors))
        self.results = _results(self.graph)
        assigned = scheduled.assigned
        any_backend = ways.backends[0]
        chosen = [ways.alone(assigned.get(node, any_backend)) for node in scheduled.graph.nodes]
        self._stepwise = Stepwise(self.graph, backends_of(self.graph, chosen))

    def run(self, run: int, judged: bool) -> str:
        if run:
            _refill(self.graph, self._leaves, self._values, run)
        return self._stepwise.run(judged)

    def read(self, tensor: Tensor) -> Bytes:
        return self._stepwise.read(tensor)


class _PoisonedArenas(ArenaPool):
    """Arenas that hold what no run has computed."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[Buffer, None] = {}

    def take(self, memory: BufferType, n_bytes: int, use: str = "results") -> Buffer:
        arena = super().take(memory, n_bytes, use)
        self._taken[arena] = None
        return arena

    def poison(self) -> None:
        for arena in self._taken:
            arena.write(0, np.full(arena.n_bytes, POISON, np.uint8))


def _results(graph: Graph) -> list[Tensor]:
    """What must be the same: the outputs, and every leaf that a run writes to."""
    written = [n.root for n in graph.nodes if n.root.is_leaf and n.op is not None and n.op.computes]
    return list(dict.fromkeys([*graph.outputs, *written]))


def _refill(graph: Graph, leaves: Mapping[str, Node], values: LeafValues, run: int) -> None:
    for leaf in graph.leafs:
        node, place = leaves[leaf.name], leaf.place
        if changes(node) and place is not None:
            place.buffer.write(place.offset, values(node, run))


def _guarded_leaf(node: Node, raw: Bytes) -> Tensor:
    return make_leaf(node, raw, guarded(placeless_leaf(node).spec.n_bytes))


def _difference(tensor: Tensor, got: Bytes, want: Bytes) -> str:
    """Empty, or where bits differ. A NaN is like any other: its sign and payload are those of the
    operand that the processor takes first."""
    if (got == want).all():
        return ""
    a, b = read_array(got, tensor.spec), read_array(want, tensor.spec)
    differ = a != b
    if a.dtype.kind == "f":
        differ |= np.signbit(a) != np.signbit(b)
        differ &= ~(np.isnan(a) & np.isnan(b))
    if not differ.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(differ)[0])
    return (
        f"results differ: {tensor.name}: {int(differ.sum())} of {a.size} elements,"
        f" the first at {place}: {_shown(a, place)}, not {_shown(b, place)}, differ"
    )


def _shown(values: NDArray[Any], place: tuple[int, ...]) -> str:
    return str(values[place])
