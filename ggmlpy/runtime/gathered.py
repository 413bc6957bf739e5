"""Inputs of attention in separate ops: the cells of sequences, gathered side by side.

Sequences with as many tokens in the ubatch form a group, which attends in one set of ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.cell_table import KV_PAD, padded
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.lists import CellLists
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.models.inputs import Gathered


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring runs of equal length."""

    n_seqs: int
    n_each: int
    n_kv: tuple[int, ...]  # cells of each sequence in each cache, padded

    @property
    def n_tokens(self) -> int:
        return self.n_seqs * self.n_each


def groups_of(ubatch: UBatch, caches: Sequence[KVCache]) -> tuple[Group, ...]:
    """The groups of a ubatch whose tokens are in the caches."""
    groups, first = [], 0
    for n_each, same in groupby(ubatch.run_lengths.tolist()):
        n_seqs = len(list(same))
        seqs = ubatch.run_seqs[first : first + n_seqs].tolist()
        n_kv = (max(_n_most(cache.cells, seq) for seq in seqs) for cache in caches)
        groups.append(Group(n_seqs, n_each, tuple(map(padded, n_kv))))
        first += n_seqs
    return tuple(groups)


def _n_most(cells: KVCells, seq: int) -> int:
    """Cells gathered of a sequence, at most."""
    return len(cells.lists.rows_of(seq)) + (KV_PAD - 1 if cells.window is not None else 0)


class GatheredInputs:
    """The arrays of a group's inputs for one cache."""

    def __init__(self, leaves: Gathered, has_window: bool) -> None:
        self._has_window = has_window
        n_kv, n_each, _, n_seqs = leaves.mask.ne
        self._mask: NDArray[np.float16] = leaves.mask.array().reshape(n_seqs, n_each, n_kv)
        self._cells: NDArray[np.int32] = leaves.cells.array().reshape(n_seqs, n_kv)
        self._tokens: NDArray[np.int32] = leaves.tokens.array().reshape(-1)
        self.n_tokens: int = n_seqs * n_each

    def fill(self, first_token: int, seen: NDArray[np.int32], lists: CellLists) -> None:
        """Set the cells of each sequence, and which of them its tokens see.

        `seen` [tokens, 3] is of the group's tokens, as `CellLists.seen` writes it. With a window a
        sequence's cells begin at its first position modulo KV_PAD, so that sums have one order
        however the tokens are cut. Cells that are lacking are the first one, hidden: any other
        might hold a NaN.
        """
        n_seqs, n_each, n_kv = self._mask.shape
        self._tokens[:] = first_token + np.arange(self.n_tokens)
        for i, of in enumerate(seen.reshape(n_seqs, n_each, 3)):
            first = int(of[0, 1])  # no token of the sequence sees a cell before it
            rows = lists.rows_of(int(of[0, 0]))[first:]
            begin = (
                int(lists.positions_of(int(of[0, 0]))[first]) % KV_PAD if self._has_window else 0
            )
            self._cells[i] = rows[0]
            self._cells[i, begin : begin + len(rows)] = rows
            entries = first - begin + np.arange(n_kv)
            shown = (entries >= of[:, 1:2]) & (entries < of[:, 1:2] + of[:, 2:3])
            self._mask[i] = np.where(shown, 0, -np.inf)
