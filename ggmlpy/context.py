"""Runs a model on tokens: KV cache, inputs, and plans that are built once for each graph shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.errors import BadBatch
from ggmlpy.executable import ArenaPool, Executable
from ggmlpy.graph import Graph
from ggmlpy.kv_cache import KVCache
from ggmlpy.models import Model
from ggmlpy.models.batch import KVView, Segment, UBatch
from ggmlpy.models.memory import AttentionLayers
from ggmlpy.scheduler import Pin
from ggmlpy.tensor import Flag, Tensor, zeros
from ggmlpy.types import F16, TensorType

MAX_PLANS = 32  # shapes kept ready; a plan's records are small, its arena is shared


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """Tokens that attend together, as many from each of some streams side by side."""

    n_tokens: int
    first_stream: int = 0
    n_stream: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """All that a graph depends on. Two ubatches of one shape run the same plan."""

    segments: tuple[SegmentShape, ...]
    n_outputs: int
    n_kv: int

    @property
    def n_tokens(self) -> int:
        return sum(s.n_tokens for s in self.segments)


class Context:
    """One model with one KV cache. `decode` runs tokens and gives logits."""

    def __init__(
        self,
        model: Model,
        backends: Sequence[Backend],
        *,
        n_ctx: int,
        n_ubatch: int = 512,
        type_k: TensorType = F16,
        type_v: TensorType = F16,
        flash_attn: bool = True,
        pin: Pin | None = None,
    ) -> None:
        self.model = model
        self.pin = pin  # which backend must run which nodes, for looking inside
        self.n_ubatch = n_ubatch
        self.flash_attn = flash_attn
        (layers,) = model.memory
        assert isinstance(layers, AttentionLayers)
        self.cache = KVCache(layers, n_ctx, type_k, type_v)
        self.n_plans_built = 0
        self._backends = list(backends)
        self._plans: OrderedDict[Shape, _PlannedGraph] = OrderedDict()
        self._arenas = ArenaPool()

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return self.cache.n_used()

    @property
    def compute_bytes(self) -> int:
        """Memory that graphs run in."""
        return self._arenas.n_bytes

    @property
    def backend_names(self) -> str:
        """In order of preference."""
        return ", ".join(b.name for b in self._backends)

    def warm_up(self) -> None:
        """Build the plan of a decode step: kernels are compiled and weights repacked by then."""
        self._plan(Shape((SegmentShape(1),), 1, self.cache.n_kv()))

    def truncate(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` positions."""
        self.cache.remove(n_tokens)

    def decode(self, tokens: Sequence[int], *, all_logits: bool = False) -> NDArray[np.float32]:
        """Run `tokens` after what the cache holds, in chunks of at most n_ubatch.

        Returns the logits of the last token, or with `all_logits` of every one: [n_outputs,
        n_vocab], good until the next call. Raises BadBatch for no tokens or one outside the
        vocabulary, CacheFull if they do not fit; either way the cache is as it was.
        """
        ids = self.check(tokens)
        start = self.cache.next_position()
        self.cache.find_cells(len(ids))  # all or nothing: raises before the first chunk runs
        kept: list[NDArray[np.float32]] = []
        try:
            for at in range(0, len(ids), self.n_ubatch):
                chunk = ids[at : at + self.n_ubatch]
                logits = self._run(chunk, start + at, len(chunk) if all_logits else 1)
                if all_logits and len(ids) > self.n_ubatch:
                    logits = logits.copy()
                kept.append(logits)
        except BaseException:
            self.cache.remove(start)
            raise
        if not all_logits or len(kept) == 1:
            return kept[-1]
        return np.concatenate(kept)

    def check(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """The tokens as an array. Raises BadBatch for none, or for one outside the vocabulary."""
        ids = np.asarray(tokens, dtype=np.int64)
        if not ids.size:
            raise BadBatch("no tokens to decode")
        n_vocab = self.model.hparams.n_vocab
        bad = np.flatnonzero((ids < 0) | (ids >= n_vocab))
        if bad.size:
            at = int(bad[0])
            raise BadBatch(f"token {ids[at]} at index {at} is not in the vocabulary of {n_vocab}")
        return ids

    def _run(self, ids: NDArray[np.int64], start: int, n_outputs: int) -> NDArray[np.float32]:
        """One ubatch: the logits of its last `n_outputs` tokens."""
        n_tokens = len(ids)
        positions = np.arange(start, start + n_tokens, dtype=np.int32)
        cells = self.cache.find_cells(n_tokens)
        self.cache.occupy(cells, positions)
        plan = self._plan(Shape((SegmentShape(n_tokens),), n_outputs, self.cache.n_kv()))
        plan.tokens[:] = ids
        plan.positions[:] = positions
        plan.out_ids[:] = np.arange(n_tokens - n_outputs, n_tokens)
        plan.rows[:] = cells
        self.cache.fill_mask(plan.masks[0], positions)
        return plan.run()

    def _plan(self, shape: Shape) -> _PlannedGraph:
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._plans[shape] = self._build(shape)
            self.n_plans_built += 1
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(shape)
        return plan

    def _build(self, shape: Shape) -> _PlannedGraph:
        inputs = make_inputs(shape, self.cache, self.flash_attn)
        logits = self.model.build(inputs)
        executable = Executable(Graph(logits), self._backends, self.pin, self._arenas)
        return _PlannedGraph(inputs, logits, executable)


def build_graph(
    model: Model,
    n_tokens: int,
    n_past: int = 0,
    *,
    type_k: TensorType = F16,
    type_v: TensorType = F16,
    flash_attn: bool = True,
) -> Graph:
    """A model's graph for `n_tokens` after `n_past`, of which the last one's logits are wanted.

    To look at, not to run: its inputs are empty.
    """
    (layers,) = model.memory
    assert isinstance(layers, AttentionLayers)
    cache = KVCache(layers, n_past + n_tokens, type_k, type_v)
    cells = cache.find_cells(n_past + n_tokens)
    cache.occupy(cells, cells.astype(np.int32))
    inputs = make_inputs(Shape((SegmentShape(n_tokens),), 1, cache.n_kv()), cache, flash_attn)
    return Graph(model.build(inputs))


def make_inputs(shape: Shape, cache: KVCache, flash_attn: bool) -> UBatch:
    """Input leaves for a ubatch of this shape."""
    n_tokens = shape.n_tokens
    segments, first_token = [], 0
    for i, part in enumerate(shape.segments):
        ne = (shape.n_kv, part.n_tokens // part.n_stream, 1, part.n_stream)
        mask = _input("f16", ne, f"inp_kq_mask.{i}")
        segments.append(Segment(first_token, part.n_tokens, part.first_stream, part.n_stream, mask))
        first_token += part.n_tokens
    kv = KVView(
        k=cache.k,
        v=cache.v,
        rows=_input("i64", (n_tokens,), "inp_kv_rows"),
        n_kv=shape.n_kv,
        segments=tuple(segments),
    )
    return UBatch(
        tokens=_input("i32", (n_tokens,), "inp_tokens"),
        positions=_input("i32", (n_tokens,), "inp_pos"),
        out_ids=_input("i32", (shape.n_outputs,), "inp_out_ids"),
        kvs=(kv,),
        flash_attn=flash_attn,
    )


def _input(type: str, ne: Sequence[int], name: str) -> Tensor:
    return zeros(type, ne, name=name, flags=Flag.INPUT)


class _PlannedGraph:
    """A graph ready to run, with its inputs and its logits as arrays over their memory."""

    __slots__ = ("_executable", "_logits", "masks", "out_ids", "positions", "rows", "tokens")

    def __init__(self, inputs: UBatch, logits: Tensor, executable: Executable) -> None:
        self._executable = executable
        self._logits = logits
        self.tokens = inputs.tokens.array()
        self.positions = inputs.positions.array()
        self.out_ids = inputs.out_ids.array()
        self.rows = inputs.kvs[0].rows.array()
        self.masks = [
            s.mask.array().reshape(-1, inputs.kvs[0].n_kv) for s in inputs.kvs[0].segments
        ]

    def run(self) -> NDArray[np.float32]:
        """Run on what the inputs hold: logits [n_outputs, n_vocab], good until the next run."""
        self._executable.run()
        logits: NDArray[np.float32] = self._executable.array(self._logits)[0, 0]
        return logits
