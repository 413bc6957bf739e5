"""The cells of each sequence in position order, as attention takes them.

A list holds rows of the cache, stream * kv_size + cell, the lowest position first. Decoding appends
to it. Any other change of what cells hold makes it stale, and it is made anew when it is next used.
With a window it may begin with cells that no later token sees, and with places that no cell has:
what a token sees begins at `first`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.memory.spans import EMPTY, Positions
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import Sight, firsts_seen
from ggmlpy.models.memory import Window

# Kernels may add up what is seen in chunks of so many places of a list. So that the chunks of a
# token, and its bits, depend on positions alone, a list that is made anew begins at the place that
# its first position has among those of a chunk.
CHUNK = 256
# The positions of places before that, in ascending order below all that a window hides.
_NO_CELL = np.iinfo(np.int32).min + np.arange(CHUNK, dtype=np.int32)

Index = NDArray[np.int64]
Held = Callable[[int], tuple[Index, Positions]]  # of a sequence: rows and positions, in order


def list_length(kv_size: int, window: Window | None) -> int:
    """Entries that a list of a cache has room for, n_max.

    With a window it is made anew when it is full, so that this happens once in `kv_size` tokens.
    """
    return kv_size if window is None else 2 * kv_size + CHUNK


class CellLists:
    """A list for each sequence, in the leaf `leaf` [n_max, n_seq_max] i32 that graphs read.

    `held` tells what a sequence holds, for lists that are made anew.
    """

    def __init__(
        self, kv_size: int, n_seq_max: int, sight: Sight, held: Held, name: str = "attn_inp_cells"
    ) -> None:
        n_max = list_length(kv_size, sight.window)
        self.leaf: Tensor = zeros("i32", (n_max, n_seq_max), name=name, flags=Flag.INPUT)
        self.n: Index = np.zeros(n_seq_max, np.int64)  # entries of each list
        self._rows: NDArray[np.int32] = self.leaf.array().reshape(n_seq_max, n_max)
        self._n_max = n_max
        self._window = window = sight.window
        self._is_causal = sight.is_causal
        self._held = held
        # With a window, or where attention reads them: of each entry its position.
        self.has_positions = window is not None or sight.needs_positions
        self._positions = np.full((n_seq_max, n_max if self.has_positions else 0), EMPTY, np.int32)
        # With a window: of each list the first entry that is seen.
        self._first: Index = np.zeros(n_seq_max, np.int64)
        self._stale: set[int] = set()

    # --- changes ---

    def append(self, ubatch: UBatch, rows: Index, positions: Positions) -> None:
        """Add the tokens of a ubatch to their sequences' lists, behind all entries."""
        entries = self.n[ubatch.seqs] + ubatch.steps
        ends = self.n[ubatch.run_seqs] + ubatch.run_lengths
        if ends.max() > self._n_max:  # with a window: made anew, without the cells used again
            self.make_stale(ubatch.run_seqs.tolist())
            return
        self._rows[ubatch.seqs, entries] = rows
        if self.has_positions:
            self._positions[ubatch.seqs, entries] = positions
        self.n[ubatch.run_seqs] = ends

    def append_one(self, seq: int, row: int, position: int) -> None:
        """`append` of one token."""
        entry = self.n.item(seq)
        if entry == self._n_max:
            self._stale.add(seq)
            return
        self._rows[seq, entry] = row
        if self.has_positions:
            self._positions[seq, entry] = position
        self.n[seq] = entry + 1

    def add(self, seq: int, rows: Index, positions: Positions, last: int) -> None:
        """Add cells that one sequence has got. It held positions up to `last`."""
        entry = self.n.item(seq)
        end = entry + len(rows)
        in_order = positions[0] > last and (positions[1:] > positions[:-1]).all()
        if not in_order or end > self._n_max:
            self._stale.add(seq)
            return
        self._rows[seq, entry:end] = rows
        if self.has_positions:
            self._positions[seq, entry:end] = positions
        self.n[seq] = end

    def make_stale(self, seqs: Iterable[int]) -> None:
        """Have the lists of some sequences made anew before they are next used."""
        self._stale.update(seqs)

    def refresh(self, seqs: Iterable[int]) -> None:
        """Make those lists of some sequences anew that are stale."""
        for seq in self._stale.intersection(seqs):
            rows, positions = self._held(seq)
            begin = 0
            if self._window is not None:
                begin = int(positions[0]) % CHUNK if len(rows) else 0
                self._rows[seq, :begin] = rows[0] if begin else 0
                self._positions[seq, :begin] = _NO_CELL[:begin]
                self._first[seq] = begin
            n = self.n[seq] = begin + len(rows)
            if self.has_positions:
                self._positions[seq, begin:n] = positions
            assert n <= self._n_max
            self._rows[seq, begin:n] = rows
            self._stale.discard(seq)

    # --- what tokens see ---

    def rows_of(self, seq: int) -> NDArray[np.int32]:
        """A sequence's list."""
        self.refresh((seq,))
        return self._rows[seq, : self.n[seq]]

    def positions_of(self, seq: int) -> Positions:
        """The positions in a sequence's list, of which cells used again hold others by now."""
        self.refresh((seq,))
        if not self.has_positions:
            return self._held(seq)[1]
        return self._positions[seq, : self.n[seq]]

    def seen(self, ubatch: UBatch, positions: Positions, out: NDArray[np.int32]) -> None:
        """Write what each token of a ubatch sees: [tokens, 3], its list, the first entry, how many.

        The tokens are in the lists, in each behind all lower positions.
        """
        if self._stale:
            self.refresh(ubatch.all_seqs)
        if not self._is_causal:
            ends = self._ends_of_all(ubatch, positions)
        elif ubatch.is_shared:
            ends = self._ends_among(ubatch, positions)
        else:
            ends = self.n[ubatch.seqs] - ubatch.n_behind
        out[:, 0] = ubatch.seqs
        out[:, 1] = first = self._firsts(ubatch, positions)
        out[:, 2] = ends - first

    def _ends_among(self, ubatch: UBatch, positions: Positions) -> Index:
        """One past the last entry that each token sees in its list, [tokens].

        That entry is found by the token's position. It cannot be counted back from the end of the
        list: where tokens belong to several sequences, a list may get tokens of several runs, so
        those behind a token in its run are not all that come after it.
        """
        ends = np.empty(len(positions), np.int64)
        for run, at in ubatch.by_run():
            held = self.positions_of(run.seqs[0])
            ends[at] = np.searchsorted(held, positions[at], side="right")
        return ends

    def _ends_of_all(self, ubatch: UBatch, positions: Positions) -> Index:
        """One past the last entry that each token sees, where tokens see those behind them too."""
        window = self._window
        if window is None or window.kind != "symmetric":
            return self.n[ubatch.seqs]
        ends = np.empty(len(positions), np.int64)
        for run, at in ubatch.by_run():
            held = self.positions_of(run.seqs[0])
            ends[at] = np.searchsorted(held, positions[at] + window.size // 2, side="right")
        return ends

    def _firsts(self, ubatch: UBatch, positions: Positions) -> Index | int:
        """The first entry that each token sees."""
        if self._window is None:
            return 0
        if len(ubatch.run_seqs) == len(positions) and not ubatch.is_shared:
            return self._advance(ubatch.run_seqs, firsts_seen(positions, self._window) - 1)
        first = np.empty(len(positions), np.int64)
        for run, at in ubatch.by_run():
            held = self.positions_of(run.seqs[0])
            first[at] = np.searchsorted(held, firsts_seen(positions[at], self._window))
            self._first[run.seqs[0]] = first[at.stop - 1]
        return first

    def _advance(self, seqs: Index, hidden: Index) -> Index:
        """The first entry of each list above a position: nearly always that found before it, or the
        next."""
        first = self._first[seqs]
        first += self._positions[seqs, first] <= hidden
        for i in np.flatnonzero(self._positions[seqs, first] <= hidden).tolist():
            held = self._positions[seqs[i], : self.n[seqs[i]]]
            first[i] = np.searchsorted(held, hidden[i], side="right")
        self._first[seqs] = first
        return first
