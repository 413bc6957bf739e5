"""What recurrent layers keep: one state a sequence, whatever its length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.graph.types import F32
from ggmlpy.models.memory import RecurrentLayers


class RecurrentState:
    """State leaves `[n_embd_r, n_seq_max]`, one a layer; row `seq` is that sequence's.

    A state cannot go back: positions can only be removed all at once. The row of a sequence that
    has not begun is zero.
    """

    def __init__(self, spec: RecurrentLayers, n_seq_max: int) -> None:
        self.n_bytes = state_bytes(spec, n_seq_max)
        ne = (spec.n_embd_r, n_seq_max)
        self.states: dict[int, Tensor] = {
            i: zeros("f32", ne, name=f"state.{i}", flags=Flag.STATE) for i in spec.layers
        }

    def clear(self, seq: int) -> None:
        """Begin the sequence anew."""
        for rows in self._rows():
            rows[seq] = 0

    def copy(self, source: int, target: int) -> None:
        """The target goes on from where the source is."""
        for rows in self._rows():
            rows[target] = rows[source]

    def save(self, seqs: list[int]) -> list[NDArray[np.float32]]:
        """The rows of some sequences in every layer, to go back to."""
        return [rows[seqs].copy() for rows in self._rows()]

    def restore(self, seqs: list[int], saved: list[NDArray[np.float32]]) -> None:
        """Go back to what `save` gave."""
        for rows, old in zip(self._rows(), saved, strict=True):
            rows[seqs] = old

    def _rows(self) -> list[NDArray[np.float32]]:
        """Each layer's states, [n_seq_max, n_embd_r], in place."""
        return [leaf.array().reshape(leaf.ne[1], leaf.ne[0]) for leaf in self.states.values()]


def state_bytes(spec: RecurrentLayers, n_seq_max: int) -> int:
    """Bytes of the states of all layers."""
    return len(spec.layers) * n_seq_max * F32.row_bytes(spec.n_embd_r)
