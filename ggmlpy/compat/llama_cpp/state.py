"""A sequence is saved and loaded."""

from __future__ import annotations

import numpy as np

from ggmlpy.compat.llama_cpp.evaluation import Evaluation
from ggmlpy.compat.llama_cpp.llama_cache import BaseLlamaCache, longest_token_prefix
from ggmlpy.compat.llama_cpp.saved import LlamaState


class StateMethods(Evaluation):
    """A model whose state can be saved and loaded."""

    cache: BaseLlamaCache | None = None

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Keep the state after each completion in a cache, and begin from the best one there.

        ggmlpy keeps prefixes by itself (`ggmlpy.Llama(cache_ram=…)`), which is faster: a cache of
        states is for those that other processes made.
        """
        self.cache = cache

    def save_state(self) -> LlamaState:
        """The state of the sequence."""
        state = self._model_in_use.save_state(seq=0).to_bytes()
        n = self.n_tokens
        scores = np.broadcast_to(np.single(0), (n, self._n_vocab))
        if self._logits_all:
            scores = self._scores.copy()
        return LlamaState(self.input_ids.copy(), scores, n, state, len(state), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Continue from a state. Raises StateError (a ValueError) for one of another model."""
        self._model_in_use.load_state(state.llama_state, seq=0)
        self.input_ids[:] = 0
        self.input_ids[: state.n_tokens] = state.input_ids[: state.n_tokens]
        self.n_tokens = state.n_tokens
        self._seed = state.seed
        self._scored = []
        if self._logits_all:
            self._scores_of_all()[: state.n_tokens] = state.scores
            self._scored = self._input_ids.tolist()

    def _begin_from_cache(self, tokens: list[int]) -> None:
        """Load the state in the cache that has more of these tokens than the sequence."""
        if self.cache is None:
            return
        try:
            state = self.cache[tokens]
        except KeyError:
            return
        n_cached = longest_token_prefix(state.input_ids[: state.n_tokens].tolist(), tokens)
        if n_cached > longest_token_prefix(self._input_ids.tolist(), tokens):
            self.load_state(state)

    def _keep_in_cache(self, tokens: list[int]) -> None:
        if self.cache is not None:
            self.cache[tokens] = self.save_state()
