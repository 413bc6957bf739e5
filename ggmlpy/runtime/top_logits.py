"""The largest logits of each row, found where they were computed: few bytes cross the bus.

    top_k(logits, k)                    the largest of each row: their token ids
    get_rows(logits as columns, ids)    their values
    get_rows(logits as columns, wanted) those of tokens that a sampler wants in any case
    sum_rows(logits)                    NaN if any of the row is

A row of which this may not be all that matters (a logit that is no number) is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.graph.buffer import BufferType, Place
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.graph.types import F32, I32
from ggmlpy.sched.executable import ArenaPool, Executable

Ids = NDArray[np.int64]
NO_IDS: Ids = np.zeros(0, np.int64)

_STEP = 64  # numbers of logits are rounded up to multiples, so that few graphs serve all
_MOST = 1024  # of a row; where more are needed, all are read


@dataclass(frozen=True, slots=True)
class TopLogits:
    """Some logits of a row: at least the largest ones, and those that were wanted.

    `ids` are token ids, ascending, and `logits` [n] what the model gave them.
    """

    ids: Ids
    logits: NDArray[np.float32]


class TopSearch:
    """Searches logits in memory of a device."""

    def __init__(self, backends: Sequence[Backend], inputs: BufferType) -> None:
        self._backends = list(backends)
        self._arenas = ArenaPool()  # its own: the logits lie in that of the model's plans
        self._inputs = inputs
        self._graphs: dict[tuple[Tensor, int, int, int], _Search | None] = {}

    def find(
        self, logits: Tensor, at: Place, n_rows: int, n_vocab: int, k: int, wanted: Sequence[Ids]
    ) -> list[TopLogits | None] | None:
        """For each row the k largest and the wanted logits, or None where all must be looked at.

        `logits` [n, rows] f32 lie at `at`; a row has `n_vocab` tokens. None: it cannot be done.
        """
        n_wanted = max(map(len, wanted), default=0)
        if max(k, n_wanted) > min(_MOST, n_vocab):
            return None
        k = 1 if k == 1 else min(_rounded(k), n_vocab)
        key = logits, n_vocab, k, _rounded(n_wanted)
        if key not in self._graphs:
            if len(self._graphs) >= 16:
                self._graphs.clear()
            self._graphs[key] = self._made(logits, at, *key[1:])
        search = self._graphs[key]
        return None if search is None else search.run(n_rows, wanted)[:n_rows]

    def _made(
        self, logits: Tensor, at: Place, n_vocab: int, k: int, n_wanted: int
    ) -> _Search | None:
        owners = [b for b in self._backends if b.supports_buffer_type(at.buffer.type)]
        search = _Search(logits, at, n_vocab, k, n_wanted, owners[0].takes_counts, self._inputs)
        nodes = [node for node in search.graph.nodes if node.op is not None and node.op.computes]
        if not all(owners[0].supports(node) for node in nodes):
            return None
        search.executable = Executable(search.graph, owners[:1], arenas=self._arenas)
        return search


def _rounded(n: int) -> int:
    return -(-n // _STEP) * _STEP


class _Search:
    """The graph of one size, for the logits of one plan."""

    executable: Executable

    def __init__(
        self,
        logits: Tensor,
        at: Place,
        n_vocab: int,
        k: int,
        n_wanted: int,
        takes_counts: bool,
        inputs: BufferType,
    ) -> None:
        n_columns, n_most = logits.ne[0], int(logits.ne[1])
        self._n_most = n_most
        self._symbol = Symbol("O", n_most) if takes_counts and n_most > 1 else None
        rows = n_most if self._symbol is None else self._symbol.count
        leaf = Tensor(Spec((n_columns, rows), F32), name="result_output", flags=Flag.INPUT)
        leaf.place = at
        row_bytes = F32.row_bytes(n_columns)
        tokens = ops.view_2d(leaf, n_vocab, rows, row_bytes, 0)
        columns = ops.view_3d(leaf, 1, n_vocab, rows, F32.type_size, row_bytes, 0)
        self._top = ops.top_k(tokens, k)
        self._values = ops.get_rows(columns, self._top)
        self._sums = ops.sum_rows(tokens)
        self._wanted: Tensor | None = None
        self._found: Tensor | None = None
        if n_wanted:
            self._wanted = zeros(
                I32, (n_wanted, n_most), name="inp_wanted", flags=Flag.INPUT, buffer_type=inputs
            )
            wanted = ops.view_2d(self._wanted, n_wanted, rows, I32.row_bytes(n_wanted), 0)
            self._found = ops.get_rows(columns, wanted)
        results = [self._top, self._values, self._sums]
        results += [] if self._found is None else [self._found]
        self.graph = Graph(*results)

    def run(self, n_rows: int, wanted: Sequence[Ids]) -> list[TopLogits | None]:
        if self._symbol is not None:
            self.executable.set_counts({self._symbol: n_rows})
        n_rows = n_rows if self._symbol is not None else self._n_most
        if self._wanted is not None:
            into = self._wanted.array().reshape(self._wanted.ne[1], self._wanted.ne[0])
            for row, ids in zip(into, wanted, strict=False):
                row[: len(ids)] = ids
                row[len(ids) :] = 0
        self.executable.run()
        top, values = self._read(self._top, n_rows), self._read(self._values, n_rows)
        sums = self._read(self._sums, n_rows)
        found = None if self._found is None else self._read(self._found, n_rows)
        made: list[TopLogits | None] = []
        for i in range(len(wanted)):
            if np.isnan(sums[i, 0]) or not np.isfinite(values[i, 0]):
                made.append(None)
                continue
            ids, logits = top[i].astype(np.int64), values[i]
            if found is not None:
                ids = np.concatenate([ids, wanted[i]])
                logits = np.concatenate([logits, found[i, : len(wanted[i])]])
            ids, first = np.unique(ids, return_index=True)
            made.append(TopLogits(ids, logits[first]))
        return made

    def _read(self, tensor: Tensor, n_rows: int) -> NDArray[Any]:
        """What was found for each row of logits, [n_rows, n]."""
        return self.executable.array(tensor).reshape(n_rows, -1)
