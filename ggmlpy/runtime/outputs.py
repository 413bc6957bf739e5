"""The outputs of a batch: logits, which stay where they were computed until they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.runtime.plans import Plan
from ggmlpy.runtime.top_logits import Ids, TopLogits, TopSearch

Logits = NDArray[np.float32]


class Outputs:
    """The logits of `n` output tokens in the order of the batch, valid until the next one.

    `order` has the row of each in the plan's results; None: the same order. `rows` are those that
    were copied to the host already.
    """

    __slots__ = ("_n", "_order", "_plan", "_rows")

    def __init__(
        self,
        plan: Plan,
        n: int,
        order: NDArray[np.int64] | None,
        rows: Logits | None = None,
    ) -> None:
        self._plan = plan
        self._n = n
        self._order = order
        self._rows = rows

    @property
    def on_host(self) -> bool:
        """Whether reading them moves no bytes."""
        return self._rows is not None or self._plan.on_host

    def all(self) -> Logits:
        """[n, n_vocab]."""
        if self._rows is None:
            rows = self._plan.read_logits(0, self._n)
            self._rows = rows if self._order is None else rows[self._order]
        return self._rows

    def row(self, i: int) -> Logits:
        """Those of output `i`, [n_vocab]. No others are copied."""
        if self._rows is not None:
            row: Logits = self._rows[i]
            return row
        at = i if self._order is None else int(self._order[i])
        one: Logits = self._plan.read_logits(at, 1)[0]
        return one

    def top(
        self, search: TopSearch, n_vocab: int, k: int, wanted: Sequence[Ids]
    ) -> list[TopLogits | None]:
        """Of each output the `k` largest logits of the first `n_vocab` tokens and the wanted ones;
        None where all must be read."""
        given = list(wanted)
        if self._order is not None:
            for i, at in enumerate(self._order):
                given[int(at)] = wanted[i]
        found = self._plan.top_logits(search, n_vocab, k, given)
        if found is None:
            return [None] * self._n
        return found if self._order is None else [found[int(at)] for at in self._order]
