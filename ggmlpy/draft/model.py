"""A smaller model that drafts: it has the same vocabulary, and runs one token after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import as_float, as_int, parsed
from ggmlpy.common.prefix import n_common
from ggmlpy.draft.base import Asked
from ggmlpy.errors import ArgumentError, CacheFull, Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import check_least


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A smaller model for `Llama(draft_model=DraftModel("small.gguf"))`.

    model         its file, or a `Llama`, whose weights are shared: it gets a context of its own
    n_max         the most tokens of a draft
    n_min         drafts of fewer tokens are not used
    p_min         the least probability of a token in a draft, which ends before others
    n_gpu_layers  as that of `Llama`, for a file

    It always proposes its most likely token. Raises ArgumentError for a number out of its range.
    """

    model: Any
    n_max: int = 16
    n_min: int = 0
    p_min: float = 0.75
    n_gpu_layers: int = -1

    def __post_init__(self) -> None:
        for name in ("n_max", "n_min", "n_gpu_layers"):
            parsed(as_int, "DraftModel", name, getattr(self, name))
        check_least("n_max", self.n_max, 1)
        check_least("n_min", self.n_min, 0)
        check_least("n_gpu_layers", self.n_gpu_layers, -1)
        if not 0 <= parsed(as_float, "DraftModel", "p_min", self.p_min) <= 1:
            raise ArgumentError(f"p_min is {self.p_min!r}: it must be in 0 .. 1")


class ModelDrafter:
    """A DraftModel for the sequences of one engine, which have the same numbers in its context."""

    def __init__(
        self,
        spec: DraftModel,
        context: Context,
        n_vocab: int,
        eog_ids: Collection[int],
        name: str,
        file: GGUFFile | None,
    ) -> None:
        """Drafts have tokens below `n_vocab`, and none that ends a text. `file` is closed with it;
        None: it belongs to others."""
        self.n_most = spec.n_max
        self.context = context
        self._spec = spec
        self._n_vocab = n_vocab
        self._eog_ids = eog_ids
        self._name = name
        self._file = file
        self._held: list[list[int]] = [[] for _ in range(context.sizes.n_seq_max)]

    def draft(self, asked: Sequence[Asked]) -> list[list[int]]:
        """See Drafter. Sequences that the context has no room for get none."""
        n_ctx_seq = self.context.sizes.n_ctx_seq
        fitting = [each for each in asked if len(each.tokens) <= n_ctx_seq]
        drafts: dict[int, list[int]] = {}
        if fitting:
            try:
                drafts = self._drafts(fitting)
            except CacheFull:
                self._evict_besides({each.seq for each in fitting})
                with suppress(CacheFull):
                    drafts = self._drafts(fitting)
        return [self._long_enough(each, drafts.get(each.seq, [])) for each in asked]

    def _long_enough(self, asked: Asked, draft: list[int]) -> list[int]:
        return draft if len(draft) >= min(self._spec.n_min, asked.n_most) else []

    def _drafts(self, asked: Sequence[Asked]) -> dict[int, list[int]]:
        """Drafts by sequence. Those that go on run together, one token of each at a time."""
        drafts: dict[int, list[int]] = {each.seq: [] for each in asked}
        batch = Batch()
        for each in asked:
            n = self._keep(each.seq, each.tokens)
            batch.extend(each.seq, each.tokens[n:], n)
        going = list(asked)
        while going:
            outputs = self.context.run_batch(batch)
            for each in going:
                held, draft = self._held[each.seq], drafts[each.seq]
                held += draft[-1:] if draft else each.tokens[len(held) :]
            batch, asked_now, going = Batch(), going, []
            for i, each in enumerate(asked_now):
                token, draft = self._likely(outputs.row(i)), drafts[each.seq]
                if token is None:
                    continue
                draft.append(token)
                n = len(each.tokens) + len(draft)
                if len(draft) < each.n_most and n <= self.context.sizes.n_ctx_seq:
                    batch.add(token, n - 1, (each.seq,), output=True)
                    going.append(each)
        return drafts

    def _keep(self, seq: int, tokens: list[int]) -> int:
        """Remove what the context holds of a sequence behind its common prefix with `tokens`, of
        which one must be run. Returns how many it holds then."""
        held, memory = self._held[seq], self.context.memory
        n = min(n_common(held, tokens), len(tokens) - 1)
        self._held[seq] = held[:n]  # first: it must not list what an interrupted removal removes
        try:
            memory.seq_rm(seq, n)
        except Unsupported:  # a window has evicted what the next token would see
            n, self._held[seq] = 0, []
            memory.seq_rm(seq)
        return n

    def _evict_besides(self, seqs: Collection[int]) -> None:
        """Remove the sequences that no draft is asked for."""
        for seq in range(len(self._held)):
            if seq not in seqs:
                self._held[seq] = []
                self.context.memory.seq_rm(seq)

    def _likely(self, logits: NDArray[np.float32]) -> int | None:
        """The most likely token, unless it is less likely than `p_min`, or cannot follow."""
        token = int(logits.argmax())
        if token >= self._n_vocab or token in self._eog_ids:
            return None
        if self._spec.p_min > 0:
            p = 1 / float(np.exp(logits - logits[token]).sum())
            if not p >= self._spec.p_min:  # also for one that is no number
                return None
        return token

    def close(self) -> None:
        """Close the file, if it was opened for this."""
        if self._file is not None:
            self._file.close()

    def __str__(self) -> str:
        spec = self._spec
        return f"{self._name}, up to {spec.n_max} tokens at a time, p_min {spec.p_min:g}"
