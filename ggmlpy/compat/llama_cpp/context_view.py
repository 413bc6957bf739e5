"""`Llama._ctx`: what scripts ask of the context."""

from __future__ import annotations

import ctypes
from typing import Any

from ggmlpy.compat.llama_cpp.embedding import EmbeddingMethods
from ggmlpy.errors import Unsupported


class ContextView:
    """The context of one sequence. Tokens are run again where the memory does not hold them, so
    nothing needs to be removed from it: `Llama.n_tokens` says how many count."""

    def __init__(self, llama: EmbeddingMethods) -> None:
        self._llama = llama

    def n_ctx(self) -> int:
        """Tokens of the context."""
        return self._llama._n_ctx

    def pooling_type(self) -> int:
        """One of LLAMA_POOLING_TYPE_…"""
        return self._llama.pooling_type()

    def kv_cache_clear(self) -> None:
        """Nothing is to be done."""

    def kv_cache_seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """True: tokens from p0 to the end count no more where `Llama.n_tokens` is set to p0.

        Raises Unsupported for tokens between others.
        """
        if 0 <= p1 < self._llama.n_tokens:
            raise Unsupported(
                f"kv_cache_seq_rm: p1 is {p1}: only tokens up to the end can be removed,"
                " ggmlpy.Context removes others"
            )
        return True

    def get_logits(self) -> Any:
        """A pointer to the logits [n_vocab] after the last token, valid as long as it is held.

        Raises RuntimeError before anything was run, and Unsupported with `logits_all`.
        """
        if self._llama._logits_all:
            raise Unsupported("get_logits: the model has logits_all=True: use Llama.scores")
        row = self._llama._logits_after(self._llama.n_tokens - 1).copy()
        return row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def get_logits_ith(self, i: int) -> Any:
        """A pointer to the logits [n_vocab] after the last token, which is i = -1.

        Raises RuntimeError before anything was run, and Unsupported for other rows.
        """
        if i != -1:
            raise Unsupported(f"get_logits_ith: i is {i}: only -1 is available, use Llama.scores")
        row = self._llama._logits_after(self._llama.n_tokens - 1).copy()
        return row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
