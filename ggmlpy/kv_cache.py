"""The KV cache: what every layer keeps of past tokens, and which cell holds which position.

`n_stream` streams of `kv_size` cells each. A token's K and V go to one cell of its stream, by
`set_rows`; the cell's number is an input of the graph, so where a token lands never changes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import CacheFull, Unsupported
from ggmlpy.models.memory import AttentionLayers
from ggmlpy.quants import has_quantizer
from ggmlpy.tensor import Flag, Tensor, zeros
from ggmlpy.types import TensorType

KV_PAD = 256  # cells in view are a multiple of this, so that few different graphs are needed
EMPTY = -1


class KVCache:
    """K and V leaves of every layer, `[n_embd_gqa, kv_size, n_stream]`, and their cells.

    Raises Unsupported for a type that rows cannot be written in.
    """

    def __init__(
        self,
        spec: AttentionLayers,
        n_ctx: int,
        type_k: TensorType,
        type_v: TensorType,
        n_stream: int = 1,
    ) -> None:
        self.n_ctx = n_ctx  # tokens that one stream may hold
        self.kv_size = _padded(n_ctx)
        self.n_stream = n_stream
        self.type_k, self.type_v = type_k, type_v
        _check_type("type_k", type_k, spec.n_embd_head_k)
        _check_type("type_v", type_v, spec.n_embd_head_v)
        n_embd_k = spec.n_embd_head_k * spec.n_head_kv
        n_embd_v = spec.n_embd_head_v * spec.n_head_kv
        self.k = {i: self._leaf(f"cache_k.{i}", type_k, n_embd_k) for i in spec.layers}
        self.v = {i: self._leaf(f"cache_v.{i}", type_v, n_embd_v) for i in spec.layers}
        self._positions = np.full((n_stream, self.kv_size), EMPTY, np.int32)
        # Kept beside the cells, so that a decode step need not scan them:
        self._n_used = [0] * n_stream
        self._end = [0] * n_stream  # one past the highest cell in use
        self._next_position = [0] * n_stream

    def _leaf(self, name: str, type: TensorType, n_embd: int) -> Tensor:
        return zeros(type, (n_embd, self.kv_size, self.n_stream), name=name, flags=Flag.STATE)

    @property
    def n_bytes(self) -> int:
        return sum(t.spec.n_bytes for t in (*self.k.values(), *self.v.values()))

    def n_used(self, stream: int = 0) -> int:
        """Cells of the stream that hold a token."""
        return self._n_used[stream]

    def next_position(self, stream: int = 0) -> int:
        """The position after the last one stored."""
        return self._next_position[stream]

    def find_cells(self, n_tokens: int, stream: int = 0) -> NDArray[np.int64]:
        """Empty cells for `n_tokens`, lowest first. Raises CacheFull; changes nothing."""
        n_used, end = self._n_used[stream], self._end[stream]
        if n_used + n_tokens > self.n_ctx:
            raise CacheFull(
                f"{n_tokens} more tokens do not fit: {n_used} of n_ctx = {self.n_ctx} are in use"
            )
        after = np.arange(end, end + n_tokens)
        if n_used == end:  # no holes, as in a sequence that only grows
            return after
        holes = np.flatnonzero(self._positions[stream, :end] == EMPTY)
        return np.concatenate([holes, after])[:n_tokens]

    def occupy(
        self, cells: NDArray[np.int64], positions: NDArray[np.int32], stream: int = 0
    ) -> None:
        """Say that `cells`, until now empty, hold the tokens at `positions`."""
        self._positions[stream, cells] = positions
        self._n_used[stream] += len(cells)
        self._end[stream] = max(self._end[stream], int(cells.max()) + 1)
        self._next_position[stream] = max(self._next_position[stream], int(positions.max()) + 1)

    def remove(self, start: int, stop: int | None = None, stream: int = 0) -> None:
        """Forget positions from `start` up to `stop` (None: all that follow)."""
        held = self._positions[stream, : self._end[stream]]
        held[(held >= start) & (stop is None or held < stop)] = EMPTY
        used = np.flatnonzero(held != EMPTY)
        self._n_used[stream] = int(used.size)
        self._end[stream] = int(used[-1]) + 1 if used.size else 0
        self._next_position[stream] = int(held.max()) + 1 if used.size else 0

    def n_kv(self, streams: Sequence[int] = (0,)) -> int:
        """Cells in view: enough for the highest in use of these streams, padded."""
        return min(self.kv_size, _padded(max(1, *(self._end[s] for s in streams))))

    def fill_mask(
        self, mask: NDArray[np.float16], positions: NDArray[np.int32], stream: int = 0
    ) -> None:
        """Write mask `[n_tokens, n_kv]`: 0 where a token may see a cell, else -inf."""
        held = self._positions[stream, : mask.shape[1]]
        visible = (held != EMPTY) & (held <= positions[:, None])
        mask.fill(-np.inf)
        mask[visible] = 0


def _padded(n: int) -> int:
    return -(-n // KV_PAD) * KV_PAD


def _check_type(name: str, type: TensorType, n_embd_head: int) -> None:
    if not (type.is_float or type.is_quantized) or not has_quantizer(type):
        raise Unsupported(f"{name} is {type}: K and V cannot be written in that type")
    if n_embd_head % type.block_size:
        raise Unsupported(
            f"{name} is {type}, in blocks of {type.block_size}: the head size {n_embd_head}"
            " is not a multiple"
        )
