"""What recurrent layers keep: one state for each sequence, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.buffer import HOST
from ggmlpy.graph.tensor import Flag, Tensor, stored_rows, zeros
from ggmlpy.graph.types import F32
from ggmlpy.memory.store import BufferTypes
from ggmlpy.models.memory import RecurrentLayers

_ROWS = 2  # of each sequence

Index = NDArray[np.int64]
States = dict[tuple[int, int], NDArray[np.float32]]  # by layer and number of the state tensor


class RecurrentState:
    """State leaves `[n, 2 * n_seq_max]`, one or more a layer.

    A sequence has two rows in each: its state and a spare one. Every change (by a graph, `clear`,
    `copy`, `write`) goes to the spare row, which then becomes the state. So nothing is copied to
    undo a change: `restore` makes the former rows the states again. A sequence that has not begun
    has a state of zeros.
    """

    def __init__(
        self, spec: RecurrentLayers, n_seq_max: int, buffer_types: BufferTypes | None = None
    ) -> None:
        self.n_taps = spec.n_taps
        self.n_bytes = sum(layer_bytes(sizes, n_seq_max) for sizes in spec.states.values())
        self.n_bytes_seq = self.n_bytes // (_ROWS * n_seq_max)  # the state of one sequence
        types, n_rows = buffer_types or {}, _ROWS * n_seq_max
        self.states: dict[int, tuple[Tensor, ...]] = {
            layer: tuple(
                zeros("f32", (n, n_rows), name=_name(layer, i), flags=Flag.STATE,
                      buffer_type=types.get(layer, HOST))
                for i, n in enumerate(sizes)
            )
            for layer, sizes in spec.states.items()
        }  # fmt: skip
        self.leaves: dict[tuple[int, int], Tensor] = {
            (layer, i): leaf for layer, parts in self.states.items() for i, leaf in enumerate(parts)
        }
        self._rows: Index = _ROWS * np.arange(n_seq_max)  # of each sequence's state
        self._written: set[int] = set()  # sequences that the batch under way has advanced

    def begin(self) -> Index:
        """Begin a batch, or one other change of each sequence. Returns what `restore` takes."""
        self._written = set()
        return self._rows

    def restore(self, before: Index) -> None:
        """Let states be what they were at `begin`."""
        self._rows = before

    # --- a batch ---

    def rows(self, seqs: Sequence[int]) -> tuple[list[int], list[int]]:
        """For each sequence the row that a graph reads, and the one that it writes.

        These are the state and the spare row; the same row twice for a sequence that the batch
        has advanced, whose spare row is the state before the batch.
        """
        rows, written = self._rows.tolist(), self._written
        read = [rows[seq] for seq in seqs]
        if not written:
            return read, [row ^ 1 for row in read]
        return read, [rows[seq] if seq in written else rows[seq] ^ 1 for seq in seqs]

    def note_written(self, seqs: list[int]) -> None:
        """Take over what a graph has written to the rows of these sequences."""
        self._switch([seq for seq in seqs if seq not in self._written] if self._written else seqs)
        self._written.update(seqs)

    # --- sequences ---

    def clear(self, seq: int) -> None:
        """Begin the sequence anew."""
        for leaf in self.leaves.values():
            buffer, rows = stored_rows(leaf)
            buffer.clear_rows(rows, self._rows[[seq]] ^ 1)
        self._switch([seq])

    def copy(self, source: int, target: int) -> None:
        """Give the target the state of the source."""
        for leaf in self.leaves.values():
            buffer, rows = stored_rows(leaf)
            buffer.copy_rows(rows, self._rows[[source]], self._rows[[target]] ^ 1)
        self._switch([target])

    def read(self, seq: int) -> States:
        """A copy of a sequence's states, [n] each."""
        found = {}
        for key, leaf in self.leaves.items():
            buffer, rows = stored_rows(leaf)
            found[key] = buffer.read_rows(rows, self._rows[[seq]])[0].view(np.float32)
        return found

    def write(self, seq: int, values: States) -> None:
        """Replace a sequence's states."""
        for key, leaf in self.leaves.items():
            buffer, rows = stored_rows(leaf)
            raw = np.ascontiguousarray(values[key], np.float32).view(np.uint8)
            buffer.write_rows(rows, self._rows[[seq]] ^ 1, raw[None, :])
        self._switch([seq])

    def _switch(self, seqs: list[int]) -> None:
        """Make the spare rows of some sequences their states."""
        rows = self._rows.copy()
        rows[seqs] ^= 1
        self._rows = rows


def _name(layer: int, i: int) -> str:
    """llama.cpp's names of the first two; further ones are numbered."""
    return f"cache_r_l{layer}" if i == 0 else f"cache_s{i if i > 1 else ''}_l{layer}"


def layer_bytes(sizes: tuple[int, ...], n_seq_max: int) -> int:
    """Bytes of the states of a layer, whose state tensors have these numbers of f32."""
    return _ROWS * n_seq_max * sum(map(F32.row_bytes, sizes))
