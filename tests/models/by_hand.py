"""A model run on inputs that are filled here, cell by cell, without the engine's caches.

Each sequence has a stream of its own. Tokens go to cells in a shuffled order, and cells that hold
nothing are filled with large numbers (NaN for the fused attention, which promises not to look at
them): whatever reads a cell that its token does not see is found out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.models import Model
from ggmlpy.models.inputs import Gathered, GraphInputs, KVView, RecurrentView
from ggmlpy.models.memory import AttentionLayers, RecurrentLayers, Window
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import Executable
from tests.seen import first_seen

N_CELLS = 64
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Group:
    """Tokens of neighbouring sequences, as many of each."""

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
        self._states: dict[int, tuple[Tensor, ...]] = {}
        for part in self.model.memory:
            if isinstance(part, RecurrentLayers):
                self._states = {
                    i: tuple(zeros("f32", (n, self.n_seqs), flags=Flag.STATE) for n in sizes)
                    for i, sizes in part.states.items()
                }
                self._n_taps = part.n_taps

    def _cache(self, part: AttentionLayers, layer: int) -> tuple[Tensor, Tensor]:
        sizes = part.layers[layer]
        widths = (sizes.n_embd_k, sizes.n_embd_v)
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
                    self._all_cells(),
                    self._seen(ubatch, part.window),
                    () if self.flash_attn else self._gathered(ubatch, part.window),
                )
                for part, cache in self._caches
            ),
            recurrent=self._recurrent(parts, sequences) if self._states else None,
        )
        logits = self.model.build(inputs)
        backends = backends_for(self.backend, self.n_threads)
        executable = Executable(Graph(*inputs.writes, logits), backends)
        executable.run()
        result: Logits = executable.read(logits)[0, 0]
        return result

    def _all_cells(self) -> Tensor:
        """The rows of each sequence's cells by position, for as many as there may be."""
        return _input("i32", [s * N_CELLS + cells for s, cells in enumerate(self._cells)])

    def _seen(self, ubatch: list[Group], window: Window | None) -> Tensor:
        """Of each token its sequence, the first position it sees, and how many."""
        seen = []
        for sequence, position in self._positions(ubatch):
            first = first_seen(position, window)
            seen.append((sequence, first, position + 1 - first))
        return _input("i32", [seen])

    def _positions(self, ubatch: list[Group]) -> list[tuple[int, int]]:
        """Sequence and position of each token."""
        return [
            (s, position)
            for group in ubatch
            for s in range(group.first_sequence, group.first_sequence + len(group.tokens))
            for position in range(self.n_past[s] - group.n_each, self.n_past[s])
        ]

    def _gathered(self, ubatch: list[Group], window: Window | None) -> tuple[Gathered, ...]:
        """All cells of each sequence as they lie, of which a mask shows some."""
        parts, first_token = [], 0
        for group in ubatch:
            n_seqs = len(group.tokens)
            mask = np.full((n_seqs, 1, group.n_each, N_CELLS), -np.inf, np.float16)
            for i, (sequence, position) in enumerate(self._positions([group])):
                first = first_seen(position, window)
                at = self._cells[sequence][first : position + 1]
                mask[i // group.n_each, 0, i % group.n_each, at] = 0
            cells = group.first_sequence * N_CELLS + np.arange(n_seqs * N_CELLS)
            tokens = first_token + np.arange(group.n_tokens)
            parts.append(Gathered(_input("i32", cells), _input("f16", mask), _input("i32", tokens)))
            first_token += group.n_tokens
        return tuple(parts)

    def _recurrent(self, parts: list[list[int]], sequences: list[int]) -> RecurrentView:
        """Columns are numbered as `RecurrentView` says."""
        n_old = self._n_taps - 1
        taps, taps_out, spans, end = [], [], [], n_old * len(parts)
        for i, part in enumerate(parts):
            columns = [*range(i * n_old, (i + 1) * n_old), *range(end, end + len(part))]
            taps += [columns[t : t + self._n_taps] for t in range(len(part))]
            taps_out += columns[-n_old:] if n_old else []
            spans.append((end - n_old * len(parts), len(part)))
            end += len(part)
        rows = _input("i32", sequences)
        given = RecurrentView(self._states, rows, rows, _input("i32", spans))
        if n_old == 0:
            return given
        return replace(given, taps=_input("i32", taps), taps_out=_input("i32", taps_out))


def _input(type: str, values: object) -> Tensor:
    array = np.asarray(values)
    leaf = zeros(type, array.shape[::-1], flags=Flag.INPUT)
    leaf.array()[:] = array.ravel()
    return leaf
