"""What ops share that carry a state from token to token: sequences of any numbers of tokens.

ggml's scans take sequences with equal numbers of tokens. With spans the tokens of all sequences
lie side by side in one dimension of T tokens, and spans [2, R] i32 has for each sequence its first
token and how many it has, at least one. The outputs, a result's first part, have room for as many
tokens as T may be, so that its second part, the states, lies at the same place in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.op import Array, Op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.types import I32


class Scan(Op):
    """The base of these ops. With spans, which are the last source, `room` is the number of tokens
    that the result has room for; without, it is None."""

    __slots__ = ()

    room: int | None

    # Of sources that have tokens, and of those that have states: the axis of an array.
    token_axes: ClassVar[Mapping[int, int]]
    state_axes: ClassVar[Mapping[int, int]]
    values: ClassVar[int]  # the source that an output is like

    def check_spans(self, spans: Spec, n_tokens: int, n_seqs: int) -> None:
        """Raise ShapeError for spans that are not of so many sequences."""
        assert self.room is not None
        assert n_tokens <= self.room
        require(
            spans.type is I32 and spans.rows_contiguous and spans.ne == (2, n_seqs, 1, 1),
            f"spans must be i32 [2, {n_seqs}] with contiguous rows",
        )

    def by_spans(self, sources: Sequence[Array], of: Callable[[Any, list[Array]], Array]) -> Array:
        """The result, flat, from what `of` gives for this op without spans and the sources of each
        sequence. What belongs to no token is 0. Raises IndexOutOfRange for spans outside."""
        *given, spans = sources
        assert self.room is not None
        alone = replace(self, room=None)  # type: ignore[type-var]
        width = int(np.prod(given[self.values].shape[2:]))
        n_tokens = given[self.values].shape[1]
        outputs = np.zeros((self.room, width))
        kept = []
        for r, (first, n) in enumerate(spans[0, 0].tolist()):
            if n < 1 or not 0 <= first <= n_tokens - n:
                raise IndexOutOfRange(
                    f"{self.name}: spans[{r}] is {n} tokens from {first} on: they must be 1 or"
                    f" more of {n_tokens}"
                )
            parts = [self._part(i, x, first, n, r) for i, x in enumerate(given)]
            result = of(alone, parts).reshape(-1)
            outputs[first : first + n] = result[: n * width].reshape(n, width)
            kept.append(result[n * width :].reshape(getattr(self, "K", 1), -1))
        return np.concatenate([outputs.reshape(-1), np.stack(kept, axis=1).reshape(-1)])

    def _part(self, i: int, x: Array, first: int, n: int, r: int) -> Array:
        """What is of sequence r in source i."""
        if i in self.token_axes:
            return np.take(x, range(first, first + n), axis=self.token_axes[i])
        return np.take(x, [r], axis=self.state_axes[i]) if i in self.state_axes else x
