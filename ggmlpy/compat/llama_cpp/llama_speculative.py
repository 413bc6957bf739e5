"""Draft models: what proposes tokens that the model then checks together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LlamaDraftModel(ABC):
    """Proposes the next tokens of a sequence."""

    @abstractmethod
    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """The tokens [n] that may follow `input_ids`; any number of them, also none."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Proposes what followed the last tokens where they occurred before (prompt lookup decoding,
    Saxena, 2023).

    Looks for the last `max_ngram_size` tokens, then for fewer of them, and takes up to
    `num_pred_tokens` tokens behind the earliest place that has any.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: NDArray[np.intc], max_ngram_size: int, num_pred_tokens: int
    ) -> NDArray[np.intc]:
        n = len(input_ids)
        for size in range(min(max_ngram_size, n - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(input_ids, size)[:-1]
            ends = np.flatnonzero((windows == input_ids[-size:]).all(axis=1)) + size
            if len(ends):
                return input_ids[ends[0] : ends[0] + num_pred_tokens]
        return np.zeros(0, np.intc)

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        return self.find_candidate_pred_tokens(
            np.asarray(input_ids), self.max_ngram_size, self.num_pred_tokens
        )
