"""Plans: a model's graphs ready to run, one for each shape of ubatch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.graph.buffer import HOST, BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.models import Model
from ggmlpy.models.blocks.adapted import applying
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.inputs import StepInputs
from ggmlpy.runtime.shape import Shape
from ggmlpy.runtime.top_logits import TopLogits, TopSearch
from ggmlpy.sched.allocator import allocate
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import ArenaPool, Executable, scheduled
from ggmlpy.sched.passes import chosen
from ggmlpy.sched.transfers import upload_bytes

MAX_PLANS = 64  # a plan's records are small, its arena is shared


class Watch(Protocol):
    """Reads values inside of graphs (`PlanCache.watch`)."""

    def wanted(self, graph: Graph) -> Sequence[Tensor]:
        """The tensors of a new graph that it reads; they become outputs."""

    def ran(self, executable: Executable) -> None:
        """Called after each run of such a graph, before the next one."""


class Plan:
    """A graph ready to run, with its inputs."""

    __slots__ = ("_counts", "_logits", "_view", "_watch", "executable", "inputs")

    def __init__(
        self,
        inputs: StepInputs,
        logits: Tensor,
        executable: Executable,
        watch: Watch | None = None,
    ) -> None:
        self.executable = executable
        self._watch = watch
        self.inputs = inputs
        inputs.set_symbols(executable.symbols)
        self._logits = logits
        self._counts = inputs.counts  # that of the last run
        # Looked up once if every run leaves its results at one address that numpy can read.
        self._view: NDArray[np.float32] | None = None
        if executable.on_host(logits):
            self._view = executable.array(logits)[0, 0]  # of as many outputs as there may be

    def run(self) -> None:
        """Run with the inputs as they are."""
        counts = self.inputs.counts
        if counts is not self._counts:  # `fill` makes a new one
            self.executable.set_counts(counts)
            self._counts = counts
        self.executable.run()
        if self._watch is not None:
            self._watch.ran(self.executable)

    @property
    def n_out(self) -> int:
        """Elements of an output: n_vocab, or n_embd of embeddings."""
        return self._logits.ne[0]

    @property
    def on_host(self) -> bool:
        """Whether reading logits moves no bytes."""
        return self._view is not None

    def read_logits(self, first: int, n: int) -> NDArray[np.float32]:
        """The logits of some outputs of the last run, [n, n_vocab], valid until the next run."""
        if self._view is not None:
            return self._view[first : first + n]
        at, n_bytes = self.executable.place(self._logits), self._logits.spec.row_bytes
        raw = at.buffer.read(at.offset + first * n_bytes, n * n_bytes)
        return raw.view(np.float32).reshape(n, self._logits.ne[0])

    def top_logits(
        self, search: TopSearch, n_vocab: int, k: int, wanted: Sequence[NDArray[np.int64]]
    ) -> list[TopLogits | None] | None:
        """See `TopSearch.find`; `wanted` has the tokens of each output of the last run."""
        at = self.executable.place(self._logits)
        return search.find(self._logits, at, len(wanted), n_vocab, k, wanted)


class PlanCache:
    """Builds a plan for each new shape, and keeps the most recent ones."""

    def __init__(
        self,
        model: Model,
        memory: SequenceMemory,
        backends: Sequence[Backend],
        pin: Pin | None,
        passes: str | Sequence[str] | None = None,
        embeddings: bool = False,
    ) -> None:
        """Plans give logits, or with `embeddings` what those are computed from."""
        self.n_built = 0
        self.build_s = 0.0  # seconds spent building them
        self.arenas = ArenaPool()
        self.plans: OrderedDict[Shape, Plan] = OrderedDict()
        self._watch: Watch | None = None
        self._directions: Mapping[int, Tensor] = {}  # of a control vector
        self._model = model
        self._build_graph = model.embeddings if embeddings else model.build
        self._memory = memory
        self._backends = list(backends)
        self._pin = pin
        devices = [b for b in backends if not b.buffer_type.is_host]
        self._inputs_type = devices[0].host_buffer_type if devices else HOST
        self.passes = chosen(passes)
        self.search = TopSearch(self._backends, self._inputs_type)

    def watch(self, watch: Watch | None) -> None:
        """Let `watch` read values of the graphs that run from now on. Drops all plans."""
        self._watch = watch
        self.plans.clear()

    def get(self, shape: Shape) -> Plan:
        """The plan for a shape, built if it is new."""
        plan = self.plans.get(shape)
        if plan is None:
            started = perf_counter()
            plan = self.plans[shape] = self._build(shape)
            self.build_s += perf_counter() - started
            self.n_built += 1
            if len(self.plans) > MAX_PLANS:
                self.plans.popitem(last=False)
        self.plans.move_to_end(shape)
        return plan

    def graph_of(self, shape: Shape) -> Graph:
        """The graph of a shape. Builds no plan."""
        return self._graph(self._inputs(shape).leaves)[0]

    def weights_changed_by(self, adapter: LoraAdapter, shape: Shape) -> set[str]:
        """The weights whose products have an adapter in the graph of a shape. Builds no plan.

        Raises Unsupported for one whose product cannot have it.
        """
        inputs = self._inputs(shape).leaves
        with applying(inputs) as applied:
            self._build_graph(inputs)
        return {name for used, name in applied.used if used is adapter}

    def steer(self, directions: Mapping[int, Tensor]) -> None:
        """Let graphs add the directions of a control vector. Drops all plans."""
        self._directions = directions
        self.plans.clear()

    def layers_steered_by(self, directions: Mapping[int, Tensor], shape: Shape) -> set[int]:
        """The layers whose results get their direction in the graph of a shape. Builds no plan."""
        inputs = replace(self._inputs(shape).leaves, directions=directions)
        self._build_graph(inputs)
        return inputs.steered

    def drop(self, adapter: LoraAdapter) -> None:
        """Drop the plans whose graphs have an adapter."""
        for shape in [s for s in self.plans if any(part.adapter is adapter for part in s.lora)]:
            del self.plans[shape]

    def snapshot(self, plan: Plan) -> Graph:
        """The graph of what a plan ran last, its inputs as they are now. No number in it varies,
        and later runs do not change its inputs. Builds no plan."""
        return self._graph(plan.inputs.snapshot(self._memory, self._inputs_type))[0]

    def arena_bytes(self, graphs: Iterable[Graph]) -> dict[tuple[BufferType, str], int]:
        """Bytes of the arenas of plans for some of the model's graphs, by memory and use.

        Builds no plan.
        """
        most: dict[tuple[BufferType, str], int] = {}
        for graph in graphs:
            schedule = scheduled(graph, self._backends, self._pin, self.passes)
            results = allocate(graph, schedule.splits).arena_bytes
            needed = {(memory, "results"): n_bytes for memory, n_bytes in results.items()}
            for key, n_bytes in (needed | upload_bytes(schedule.uploads)).items():
                most[key] = max(most.get(key, 0), n_bytes)
        return most

    def reserve(self, graphs: Sequence[Graph]) -> None:
        """Allocate the arenas of plans for the graphs, and a sixteenth more if there are several.

        Ubatches of shapes between them may need more than each of them. Raises AllocationError.
        """
        for (memory, use), n_bytes in self.arena_bytes(graphs).items():
            self.arenas.take(memory, n_bytes + (n_bytes // 16 if len(graphs) > 1 else 0), use)

    def _build(self, shape: Shape) -> Plan:
        inputs = self._inputs(shape)
        graph, logits = self._graph(inputs.leaves)
        if self._watch is not None:
            graph = Graph(*graph.outputs, *self._watch.wanted(graph))
        executable = Executable(graph, self._backends, self._pin, self.arenas, self.passes)
        return Plan(inputs, logits, executable, self._watch)

    def _inputs(self, shape: Shape) -> StepInputs:
        n_pos = self._model.n_pos_per_embd
        return StepInputs(shape, self._memory, self._inputs_type, n_pos)

    def _graph(self, inputs: GraphInputs) -> tuple[Graph, Tensor]:
        """The graph of some inputs, and its logits."""
        inputs = replace(inputs, directions=self._directions)
        with applying(inputs):
            logits = self._build_graph(inputs)
        return Graph(*inputs.writes, logits), logits
