"""A model run on inputs that are filled here, cell by cell, without the engine's caches.

Each sequence has a stream of its own. Tokens go to cells in a shuffled order, and cells that hold
nothing are filled with large numbers (NaN for the fused attention, which promises not to look at
them): whatever reads a cell that its mask hides is found out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.models import Model
from ggmlpy.models.inputs import GraphInputs, KVView, RecurrentSegment, RecurrentView, Segment
from ggmlpy.models.memory import AttentionLayers, RecurrentLayers
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import Executable

N_CELLS = 64
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Group:
    """Tokens of neighbouring sequences, as many of each: one segment, and one run."""

    first_sequence: int
    tokens: list[list[int]]

    @property
    def n_each(self) -> int:
        return len(self.tokens[0])

    @property
    def n_tokens(self) -> int:
        return self.n_each * len(self.tokens)


def alone(tokens: list[int], sequence: int = 0) -> list[Group]:
    """A ubatch of one sequence's tokens."""
    return [Group(sequence, [tokens])]


@dataclass
class ByHand:
    """The memory of `n_seqs` sequences, and what runs ubatches on it."""

    model: Model
    backend: str = "reference"
    flash_attn: bool = True
    n_seqs: int = 1
    n_threads: int = 2
    n_past: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.n_past = [0] * self.n_seqs
        shuffle = np.random.default_rng(7).permutation
        self._cells = [shuffle(N_CELLS) for _ in range(self.n_seqs)]  # by position
        self._caches = [
            (part, {i: self._cache(part, i) for i in part.layers})
            for part in self.model.memory
            if isinstance(part, AttentionLayers)
        ]
        self._states: dict[int, Tensor] = {}
        for part in self.model.memory:
            if isinstance(part, RecurrentLayers):
                ne = (part.n_embd_r, self.n_seqs)
                self._states = {i: zeros("f32", ne, flags=Flag.STATE) for i in part.layers}

    def _cache(self, part: AttentionLayers, layer: int) -> tuple[Tensor, Tensor]:
        widths = (part.n_embd_head_k * part.n_head_kv, part.n_embd_head_v * part.n_head_kv)
        k, v = (
            zeros("f32", (width, N_CELLS, self.n_seqs), name=f"{name}.{layer}", flags=Flag.STATE)
            for name, width in zip("kv", widths, strict=True)
        )
        for leaf in (k, v):
            leaf.array()[:] = np.nan if self.flash_attn else 1e4
        return k, v

    def run(self, ubatch: list[Group], outputs: list[int] | None = None) -> Logits:
        """Logits of the tokens at `outputs` (by default all), [n_outputs, n_vocab]."""
        sequences = [g.first_sequence + s for g in ubatch for s in range(len(g.tokens))]
        parts = [tokens for g in ubatch for tokens in g.tokens]
        positions = [
            self.n_past[s] + np.arange(len(part)) for s, part in zip(sequences, parts, strict=True)
        ]
        for s, part in zip(sequences, parts, strict=True):
            self.n_past[s] += len(part)
        cells = [self._cells[s][p] for s, p in zip(sequences, positions, strict=True)]
        rows = [s * N_CELLS + c for s, c in zip(sequences, cells, strict=True)]
        tokens = np.concatenate(parts)
        inputs = GraphInputs(
            tokens=_input("i32", tokens),
            positions=_input("i32", np.concatenate(positions)),
            out_ids=_input("i32", np.arange(len(tokens)) if outputs is None else outputs),
            kvs=tuple(
                KVView(
                    {i: k for i, (k, _) in cache.items()},
                    {i: v for i, (_, v) in cache.items()},
                    _input("i64", np.concatenate(rows)),
                    N_CELLS,
                    self._segments(ubatch, part.window),
                )
                for part, cache in self._caches
            ),
            flash_attn=self.flash_attn,
            recurrent=self._recurrent(ubatch, sequences) if self._states else None,
        )
        logits = self.model.build(inputs)
        backends = backends_for(self.backend, self.n_threads)
        executable = Executable(Graph(*inputs.writes, logits), backends)
        executable.run()
        result: Logits = executable.read(logits)[0, 0]
        return result

    def _segments(self, ubatch: list[Group], window: int | None) -> tuple[Segment, ...]:
        segments, first_token = [], 0
        for group in ubatch:
            n_stream = len(group.tokens)
            mask = np.full((n_stream, 1, group.n_each, N_CELLS), -np.inf, np.float16)
            for s in range(n_stream):
                sequence = group.first_sequence + s
                end = self.n_past[sequence]
                for row, position in enumerate(range(end - group.n_each, end)):
                    first = 0 if window is None else max(0, position - window + 1)
                    mask[s, 0, row, self._cells[sequence][first : position + 1]] = 0
            segments.append(
                Segment(
                    first_token, group.n_tokens, group.first_sequence, n_stream, _input("f16", mask)
                )
            )
            first_token += group.n_tokens
        return tuple(segments)

    def _recurrent(self, ubatch: list[Group], sequences: list[int]) -> RecurrentView:
        runs, first_token, first_sequence = [], 0, 0
        for group in ubatch:
            runs.append(
                RecurrentSegment(first_token, group.n_tokens, first_sequence, len(group.tokens))
            )
            first_token += group.n_tokens
            first_sequence += len(group.tokens)
        rows = _input("i32", sequences)
        return RecurrentView(self._states, rows, rows, tuple(runs))


def _input(type: str, values: object) -> Tensor:
    array = np.asarray(values)
    leaf = zeros(type, array.shape[::-1], flags=Flag.INPUT)
    leaf.array()[:] = array.ravel()
    return leaf
