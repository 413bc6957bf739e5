"""A model's graphs ready to run, one for each shape of ubatch, with their inputs as arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.ubatch import SegmentShape
from ggmlpy.models import Model
from ggmlpy.models.inputs import GraphInputs, KVView, RecurrentSegment, RecurrentView, Segment
from ggmlpy.sched.allocator import allocate
from ggmlpy.sched.assignment import Pin, assign
from ggmlpy.sched.executable import ArenaPool, Executable
from ggmlpy.sched.scheduler import cut

MAX_PLANS = 64  # shapes kept ready; a plan's records are small, its arena is shared


@dataclass(frozen=True, slots=True)
class Shape:
    """All that a graph depends on. Two ubatches of one shape run the same plan."""

    segments: tuple[SegmentShape, ...]
    n_outputs: int
    n_kv: tuple[int, ...]  # cells in view of each KV cache
    runs: tuple[tuple[int, int], ...] = ()  # (tokens, sequences), for recurrent layers only

    @property
    def n_tokens(self) -> int:
        return sum(s.n_tokens for s in self.segments)


def make_inputs(shape: Shape, memory: SequenceMemory, flash_attn: bool) -> GraphInputs:
    """Input leaves for a ubatch of this shape."""
    n_tokens = shape.n_tokens
    kvs = [
        _kv_view(cache, shape, n_kv) for cache, n_kv in zip(memory.caches, shape.n_kv, strict=True)
    ]
    return GraphInputs(
        tokens=_input("i32", (n_tokens,), "inp_tokens"),
        positions=_input("i32", (n_tokens,), "inp_pos"),
        out_ids=_input("i32", (shape.n_outputs,), "inp_out_ids"),
        kvs=tuple(kvs),
        flash_attn=flash_attn,
        recurrent=_recurrent_view(memory, shape),
    )


def _kv_view(cache: KVCache, shape: Shape, n_kv: int) -> KVView:
    window = "" if cache.window is None else "_swa"
    segments, first_token = [], 0
    for i, part in enumerate(shape.segments):
        ne = (n_kv, part.n_tokens // part.n_stream, 1, part.n_stream)
        part_name = f".segment_{i}" if len(shape.segments) > 1 else ""
        mask = _input("f16", ne, f"attn_inp_kq_mask{window}{part_name}")
        segments.append(Segment(first_token, part.n_tokens, part.first_stream, part.n_stream, mask))
        first_token += part.n_tokens
    rows = _input("i64", (shape.n_tokens,), f"attn_inp_kv_idxs{window}")
    return KVView(cache.k, cache.v, rows, n_kv, tuple(segments))


def _recurrent_view(memory: SequenceMemory, shape: Shape) -> RecurrentView | None:
    if memory.recurrent is None:
        return None
    runs, first_token, first_sequence = [], 0, 0
    for n_tokens, n_seqs in shape.runs:
        runs.append(RecurrentSegment(first_token, n_tokens, first_sequence, n_seqs))
        first_token += n_tokens
        first_sequence += n_seqs
    rows = _input("i32", (first_sequence,), "inp_s_copy")
    rows_out = _input("i32", (first_sequence,), "inp_s_copy_out")
    return RecurrentView(memory.recurrent.states, rows, rows_out, tuple(runs))


def _input(type: str, ne: Sequence[int], name: str) -> Tensor:
    return zeros(type, ne, name=name, flags=Flag.INPUT)


class Plan:
    """A graph ready to run, with its inputs as arrays over their memory, for the caller to fill.

    `masks[cache][segment]` are [tokens, n_kv].
    """

    __slots__ = (
        "_logits", "_view", "executable", "masks", "out_ids", "positions", "rows", "state_rows",
        "tokens",
    )  # fmt: skip

    def __init__(self, inputs: GraphInputs, logits: Tensor, executable: Executable) -> None:
        self.executable = executable
        self._logits = logits
        # Looked up once where the results of every run lie at one place that numpy can read.
        self._view: NDArray[np.float32] | None = None
        if executable.on_host(logits):
            self._view = executable.array(logits)[0, 0]
        self.tokens = inputs.tokens.array()
        self.positions = inputs.positions.array()
        self.out_ids = inputs.out_ids.array()
        self.rows: list[NDArray[Any]] = [kv.rows.array() for kv in inputs.kvs]
        self.masks: list[list[NDArray[Any]]] = [
            [s.mask.array().reshape(-1, kv.n_kv) for s in kv.segments] for kv in inputs.kvs
        ]
        recurrent = inputs.recurrent
        self.state_rows: tuple[NDArray[Any], NDArray[Any]] | None = None
        if recurrent is not None:
            self.state_rows = recurrent.rows.array(), recurrent.rows_out.array()

    def run(self) -> NDArray[np.float32]:
        """Run on what the inputs hold: logits [n_outputs, n_vocab], good until the next run."""
        self.executable.run()
        if self._view is not None:
            return self._view
        logits: NDArray[np.float32] = self.executable.array(self._logits)[0, 0]
        return logits


class PlanCache:
    """Builds a plan for a shape that it has not seen, and keeps the most recent ones."""

    def __init__(
        self,
        model: Model,
        memory: SequenceMemory,
        backends: Sequence[Backend],
        flash_attn: bool,
        pin: Pin | None,
    ) -> None:
        self.n_built = 0
        self.arenas = ArenaPool()
        self.plans: OrderedDict[Shape, Plan] = OrderedDict()
        self._model = model
        self._memory = memory
        self._backends = list(backends)
        self._flash_attn = flash_attn
        self._pin = pin

    def get(self, shape: Shape) -> Plan:
        """The plan for a shape, built if it is new."""
        plan = self.plans.get(shape)
        if plan is None:
            plan = self.plans[shape] = self._build(shape)
            self.n_built += 1
            if len(self.plans) > MAX_PLANS:
                self.plans.popitem(last=False)
        self.plans.move_to_end(shape)
        return plan

    def graph_of(self, shape: Shape) -> Graph:
        """The graph of a shape. Nothing is planned."""
        return self._graph(shape)[0]

    def arena_bytes(self, shape: Shape) -> dict[str, int]:
        """Bytes that a plan for the shape would run in, by buffer type. Nothing is planned."""
        graph, _, _ = self._graph(shape)
        schedule = cut(graph, assign(graph, self._backends, self._pin))
        arenas = allocate(graph, schedule.splits).arena_bytes
        return {memory.name: n_bytes for memory, n_bytes in arenas.items()}

    def _build(self, shape: Shape) -> Plan:
        graph, inputs, logits = self._graph(shape)
        return Plan(inputs, logits, Executable(graph, self._backends, self._pin, self.arenas))

    def _graph(self, shape: Shape) -> tuple[Graph, GraphInputs, Tensor]:
        """The graph of a shape, its inputs, and its logits."""
        inputs = make_inputs(shape, self._memory, self._flash_attn)
        logits = self._model.build(inputs)
        return Graph(*inputs.writes, logits), inputs, logits
