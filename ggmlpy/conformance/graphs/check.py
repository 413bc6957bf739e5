"""Checking a program on backends: scheduled as a whole, and node by node.

The whole graph runs as the scheduler has it: split between the backends, fused, in memory that is
reused, with only what is wanted kept. Then it runs node by node (stepwise.py) on the same backends,
or on others that promise the same bits. What is wanted, and every leaf that runs write to, must
have the same bits after each run; and each node is judged by its op's reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.graphs.leaves import changes, fill_leaf, make_leaf
from ggmlpy.conformance.graphs.program import LEAF, Node, Program, build, wanted
from ggmlpy.conformance.graphs.stepwise import POISON, Stepwise, backends_of, guarded
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.arrays import read_array
from ggmlpy.graph.buffer import HOST, Buffer, BufferType, Bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import type_of
from ggmlpy.sched.executable import ArenaPool, Executable


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
) -> str:
    """Empty, or what is wrong, beginning with two or three words that tell faults apart.

    Nodes that no backend supports are leaves (`fitted`).
    """
    ways = Ways(tuple(backends), tuple(one_by_one), passes)
    program, _ = fitted(program, ways.backends)
    try:
        return _compare(program, ways, judged)
    except GgmlpyError as error:  # what could be built must run
        return f"refused when run: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _compare(program: Program, ways: Ways, judged: bool) -> str:
    scheduled = _Scheduled(program, ways)
    if not scheduled.graph.nodes:
        return ""
    stepwise = _OneByOne(program, ways, scheduled)
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

    def __init__(self, program: Program, ways: Ways) -> None:
        backends = ways.backends
        self._leaves = {node.name: node for node in program.nodes if node.is_leaf}
        self._tensors = build(program, lambda node: make_leaf(node, 0, _home(node, backends)))
        self.outputs = wanted(program, self._tensors)
        self.graph = Graph(*self.outputs)
        self.results = _results(self.graph)
        pins = _pins(program, self._tensors, backends) if len(backends) > 1 else {}
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
            _refill(self.graph, self._leaves, run)
        self._executable.run()

    def read(self, tensor: Tensor) -> Bytes:
        return self._executable.raw(tensor)


class _OneByOne:
    """The same graph, its nodes run one by one on the backends that the scheduler chose."""

    def __init__(self, program: Program, ways: Ways, scheduled: _Scheduled) -> None:
        self._leaves = {node.name: node for node in program.nodes if node.is_leaf}
        tensors = build(program, _guarded_leaf)
        self.graph = Graph(*wanted(program, tensors))
        self.results = _results(self.graph)
        assigned = scheduled.assigned
        any_backend = ways.backends[0]
        chosen = [ways.alone(assigned.get(node, any_backend)) for node in scheduled.graph.nodes]
        self._stepwise = Stepwise(self.graph, backends_of(self.graph, chosen))

    def run(self, run: int, judged: bool) -> str:
        if run:
            _refill(self.graph, self._leaves, run)
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


def _refill(graph: Graph, leaves: Mapping[str, Node], run: int) -> None:
    for leaf in graph.leafs:
        node = leaves[leaf.name]
        if changes(node):
            fill_leaf(leaf, node, run)


def _guarded_leaf(node: Node) -> Tensor:
    leaf = make_leaf(node)
    assert leaf.place is not None
    place = guarded(leaf.spec.n_bytes)
    place.buffer.write(place.offset, leaf.place.host_bytes[: leaf.spec.n_bytes])
    leaf.place = place
    return leaf


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


# ---- backends of nodes and leaves


def _home(node: Node, backends: Sequence[Backend]) -> BufferType:
    """The memory in which a leaf lies."""
    home = node.params.get("home", 0)
    if node.params.get("state") or (node.params.get("weight") and home):
        memory: BufferType = backends[home % len(backends)].buffer_type
        return memory
    return HOST


def _pins(
    program: Program, tensors: Mapping[str, Tensor], backends: Sequence[Backend]
) -> dict[Tensor, str]:
    """Names of backends for nodes with a pin. One that writes into state runs where that lies; one
    that its backend does not support, on another."""
    pins = {}
    for node in program.nodes:
        tensor, pin = tensors.get(node.name), node.params.get("pin")
        if tensor is None or tensor.op is None or not tensor.op.computes:
            continue
        if Flag.STATE in tensor.root.flags:
            at = tensor.root.place
            assert at is not None
            memory = at.buffer.type
            pins[tensor] = next(b.name for b in backends if b.supports_buffer_type(memory))
        elif pin is not None:
            first = backends[pin % len(backends)]
            able = next(b for b in (first, *backends) if b.supports(tensor))
            pins[tensor] = able.name
    return pins


def fitted(program: Program, backends: Sequence[Backend]) -> tuple[Program, int]:
    """The program for these backends, and how many of its nodes none of them supports: leaves take
    their places. State that its home cannot write lies in memory of the first backend."""
    tensors = build(program, placeless_leaf)
    homes = {node.name: node.params.get("home", 0) for node in program.nodes}
    nodes: list[Node] = []
    n_left_out = 0
    homeless: set[str] = set()
    known: set[Tensor] = set()
    for node in program.nodes:
        tensor = tensors.get(node.name)
        new = [] if tensor is None or node.is_leaf else _new_nodes(tensor, known)
        known.update(new)
        supported = True
        for made in filter(_computes, new):
            able = [backend for backend in backends if backend.supports(made)]
            if _writes_state(made):
                state = made.root.name
                if backends[homes[state] % len(backends)] not in able:
                    homeless.add(state)
                    supported &= backends[0] in able
            supported &= bool(able)
        if not supported:
            n_left_out += 1
        nodes.append(node if supported or tensor is None else _in_place_of(node, tensor))
    if n_left_out or homeless:
        program = replace(program, nodes=tuple(_at_home(n, homeless) for n in nodes))
    return program, n_left_out


def placeless_leaf(node: Node) -> Tensor:
    """A leaf without data, for shapes alone."""
    leaf = Tensor(Spec(node.params["ne"], type_of(node.params["type"])), name=node.name)
    leaf.flags = Flag.STATE if node.params.get("state") else Flag.NONE
    return leaf


def _new_nodes(tensor: Tensor, known: set[Tensor]) -> list[Tensor]:
    """The nodes that a call has made: the result, and others before it."""
    found: dict[Tensor, None] = {}
    stack = [tensor]
    while stack:
        node = stack.pop()
        if node in known or node in found or node.is_leaf:
            continue
        found[node] = None
        stack += node.src
    return list(found)


def _computes(node: Tensor) -> bool:
    return node.op is not None and node.op.computes


def _writes_state(node: Tensor) -> bool:
    return _computes(node) and node.root is not node and Flag.STATE in node.root.flags


def _in_place_of(node: Node, tensor: Tensor) -> Node:
    """A leaf like the result of a node."""
    name = tensor.type.name
    params: dict[str, Any] = {"type": name, "ne": list(tensor.ne), "fill": "uniform", "seed": 1}
    if not tensor.type.is_float:
        params |= {"fill": "ids", "limit": 1}
    return Node(node.name, LEAF, (), params)


def _at_home(node: Node, homeless: Iterable[str]) -> Node:
    if not node.is_leaf or node.name not in homeless:
        return node
    return replace(node, params={k: v for k, v in node.params.items() if k != "home"})


Check = Callable[[Program], str]
