"""What is saved of a sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class LlamaState:
    """A sequence: its tokens, logits, and what the memory held of it."""

    def __init__(
        self,
        input_ids: NDArray[np.intc],
        scores: NDArray[np.single],
        n_tokens: int,
        llama_state: bytes,
        llama_state_size: int,
        seed: int,
    ) -> None:
        """input_ids [n_ctx], scores [n_tokens, n_vocab]: zeros unless the model has logits_all;
        llama_state the bytes of a `ggmlpy.LlamaState`."""
        self.input_ids = input_ids
        self.scores = scores
        self.n_tokens = n_tokens
        self.llama_state = llama_state
        self.llama_state_size = llama_state_size
        self.seed = seed
