"""Inputs of attention in separate ops: the cells of sequences, gathered side by side.

Sequences with as many tokens in the ubatch form a group, which attends in one set of ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.slots import SlotInfo
from ggmlpy.memory.spans import Positions
from ggmlpy.models.inputs import Gathered

# Lengths of what is gathered are multiples of this: its graphs are of exact lengths, and few
# different ones are needed.
GATHERED_PAD = 256


def gathered_length(n_cells: int) -> int:
    """The length that `n_cells` of a sequence are gathered in."""
    return -(-n_cells // GATHERED_PAD) * GATHERED_PAD


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring runs of equal length."""

    n_seqs: int
    n_each: int
    # Cells of each sequence in each cache, as long as they are gathered; last those of its source,
    # of a model that has any, where 0 means that they are not gathered.
    n_kv: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return self.n_seqs * self.n_each


@dataclass(frozen=True, slots=True)
class _Span:
    """The entries of a sequence's list that any of its tokens in a ubatch sees."""

    seq: int
    first: int
    end: int
    begin: int  # where the first of them is gathered

    @classmethod
    def of(cls, seen: NDArray[np.int32], cells: KVCells) -> _Span:
        """`seen` [tokens, 3] is of the sequence's tokens, as `CellLists.seen` writes it.

        With a window the cells begin at the first one's position modulo GATHERED_PAD, so that sums
        have one order however the tokens are cut.
        """
        seq, first, _ = seen[0].tolist()  # no token sees an entry before that of the first token
        _, last_first, n_seen = seen[-1].tolist()
        begin = 0
        if cells.window is not None:
            begin = int(cells.lists.positions_of(seq)[first]) % GATHERED_PAD
        return cls(seq, first, last_first + n_seen, begin)

    @property
    def n_kv(self) -> int:
        """Cells that are gathered, those before the first one included."""
        return self.begin + self.end - self.first


def groups_of(
    slot_info: SlotInfo, source: SequenceMemory | None = None, *, gathers_source: bool = False
) -> tuple[Group, ...]:
    """The groups of a ubatch whose tokens are in the caches."""
    ubatch = slot_info.ubatch
    n_kv = [_n_kv(slot.cache.cells, slot_info) for slot in slot_info.slots]
    if source is not None:
        seqs = ubatch.run_seqs.tolist()
        n_kv.append([source.seq_pos_max(seq) + 1 if gathers_source else 0 for seq in seqs])
    groups, first = [], 0
    for n_each, same in groupby(ubatch.run_lengths.tolist()):
        end = first + len(list(same))
        most = (max(each[first:end]) for each in n_kv)
        groups.append(Group(end - first, n_each, tuple(map(gathered_length, most))))
        first = end
    return tuple(groups)


def _n_kv(cells: KVCells, slot_info: SlotInfo) -> list[int]:
    """How many cells of one cache are gathered for each run of a ubatch."""
    seen = np.empty((len(slot_info.positions), 3), np.int32)
    cells.lists.seen(slot_info.ubatch, slot_info.positions, seen)
    return [_Span.of(seen[at], cells).n_kv for _, at in slot_info.ubatch.by_run()]


class GatheredInputs:
    """The arrays of a group's inputs for one cache."""

    def __init__(self, leaves: Gathered) -> None:
        n_kv, n_each, _, n_seqs = leaves.mask.ne
        self._mask: NDArray[np.float16] = leaves.mask.array().reshape(n_seqs, n_each, n_kv)
        self._cells: NDArray[np.int32] = leaves.cells.array().reshape(n_seqs, n_kv)
        self._tokens: NDArray[np.int32] = leaves.tokens.array().reshape(-1)
        self._buckets: NDArray[np.int32] | None = None
        if leaves.buckets is not None:
            self._buckets = leaves.buckets.array().reshape(n_seqs, n_each, n_kv)
        self.n_tokens: int = n_seqs * n_each

    def fill(
        self, first_token: int, seen: NDArray[np.int32], positions: Positions, cells: KVCells
    ) -> None:
        """Set the cells of each sequence, and which of them its tokens see.

        `seen` [tokens, 3] is of the group's tokens, as `CellLists.seen` writes it, `positions` are
        theirs. Cells that are lacking are the first one, hidden: any other might hold a NaN.
        """
        n_seqs, n_each, n_kv = self._mask.shape
        self._tokens[:] = first_token + np.arange(self.n_tokens)
        for i, of in enumerate(seen.reshape(n_seqs, n_each, 3)):
            span = _Span.of(of, cells)
            rows = cells.lists.rows_of(span.seq)[span.first : span.end]
            self._cells[i] = rows[0]
            self._cells[i, span.begin : span.n_kv] = rows
            entries = span.first - span.begin + np.arange(n_kv)
            shown = (entries >= of[:, 1:2]) & (entries < of[:, 1:2] + of[:, 2:3])
            bias: NDArray[np.float32] = np.zeros((n_each, n_kv), np.float32)
            if cells.needs_positions:
                held = cells.lists.positions_of(span.seq)[span.first : span.end]
                at = positions[i * n_each : (i + 1) * n_each, None]
                bias[:, span.begin : span.n_kv] = -np.abs(held - at)
            self._mask[i] = np.where(shown, bias, -np.inf)
            if self._buckets is not None and cells.buckets is not None:
                held = cells.lists.positions_of(span.seq)[span.first : span.end]
                at = positions[i * n_each : (i + 1) * n_each, None]
                self._buckets[i] = 0
                self._buckets[i, :, span.begin : span.n_kv] = cells.buckets.of(held - at)
