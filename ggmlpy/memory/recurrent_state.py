"""What recurrent layers keep: one state a sequence, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.buffer import HOST
from ggmlpy.graph.tensor import Flag, Tensor, stored_rows, zeros
from ggmlpy.graph.types import F32
from ggmlpy.memory.kv_cache import BufferTypes
from ggmlpy.models.memory import RecurrentLayers

_ROWS = 2  # of each sequence: the state that it has, and that which the batch under way gives it

Index = NDArray[np.int64]


class RecurrentState:
    """State leaves `[n_embd_r, 2 * n_seq_max]`, one a layer.

    A sequence has two rows. A graph reads the one and writes the other, and only when the batch has
    succeeded does the other become its state: to undo a failed batch nothing need be copied. The
    state of a sequence that has not begun is zero.
    """

    def __init__(
        self, spec: RecurrentLayers, n_seq_max: int, buffer_types: BufferTypes | None = None
    ) -> None:
        self.n_bytes = state_bytes(spec, n_seq_max)
        self.n_bytes_seq = self.n_bytes // (_ROWS * n_seq_max)  # the state of one sequence
        ne, types = (spec.n_embd_r, _ROWS * n_seq_max), buffer_types or {}
        self.states: dict[int, Tensor] = {
            i: zeros(
                "f32", ne, name=f"cache_r_l{i}", flags=Flag.STATE, buffer_type=types.get(i, HOST)
            )
            for i in spec.layers
        }
        self._rows: Index = _ROWS * np.arange(n_seq_max)  # of each sequence's state
        self._before = self._rows  # the same when the batch under way began
        self._written: set[int] = set()  # sequences that the batch under way has advanced

    # --- a batch ---

    def begin(self) -> None:
        """What `undo` goes back to."""
        self._before = self._rows

    def rows(self, seqs: Sequence[int]) -> tuple[list[int], list[int]]:
        """For each sequence the row that a graph reads, and the one that it writes."""
        current = self._rows.tolist()
        to = [current[seq] ^ 1 for seq in seqs]
        read = [row if seq in self._written else row ^ 1 for seq, row in zip(seqs, to, strict=True)]
        return read, to

    def note_written(self, seqs: Sequence[int]) -> None:
        """A graph has written these sequences' rows: later ones of the batch read them."""
        self._written.update(seqs)

    def commit(self) -> None:
        """The batch has succeeded: what it wrote are the states."""
        rows = self._rows.copy()
        rows[list(self._written)] ^= 1
        self._rows, self._written = rows, set()

    def undo(self) -> None:
        """The batch has failed, maybe by an interrupt after `commit`: states are what they were."""
        self._rows, self._written = self._before, set()

    # --- sequences ---

    def clear(self, seq: int) -> None:
        """Begin the sequence anew."""
        for leaf in self.states.values():
            buffer, rows = stored_rows(leaf)
            buffer.clear_rows(rows, self._rows[[seq]])

    def copy(self, source: int, target: int) -> None:
        """The target goes on from where the source is."""
        for leaf in self.states.values():
            buffer, rows = stored_rows(leaf)
            buffer.copy_rows(rows, self._rows[[source]], self._rows[[target]])

    def read(self, seq: int) -> dict[int, NDArray[np.float32]]:
        """A copy of a sequence's state of each layer, [n_embd_r]."""
        found = {}
        for i, leaf in self.states.items():
            buffer, rows = stored_rows(leaf)
            found[i] = buffer.read_rows(rows, self._rows[[seq]])[0].view(np.float32)
        return found

    def write(self, seq: int, values: dict[int, NDArray[np.float32]]) -> None:
        """Replace a sequence's state of each layer."""
        for i, leaf in self.states.items():
            buffer, rows = stored_rows(leaf)
            raw = np.ascontiguousarray(values[i], np.float32).view(np.uint8)
            buffer.write_rows(rows, self._rows[[seq]], raw[None, :])


def state_bytes(spec: RecurrentLayers, n_seq_max: int) -> int:
    """Bytes of the states of all layers."""
    return len(spec.layers) * _ROWS * n_seq_max * F32.row_bytes(spec.n_embd_r)
