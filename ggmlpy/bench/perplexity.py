"""Perplexity of a text, as llama-perplexity defines it.

    chunks         the text's tokens cut into chunks of n_ctx, whose first token becomes BOS if the
                   file asks for a BOS; of each the tokens behind the first half, and the one after
                   it, are scored: those from n_ctx / 2 + 1 on
    with a stride  windows of n_ctx + stride / 2 tokens (rounded up to 256), each `stride` tokens
                   behind the one before, of which the last `stride` are scored; no BOS is put in

Perplexity is e to the mean of the negative log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import ArgumentError, BadBatch, Unsupported
from ggmlpy.llama import Llama

LEAST_CTX = 4  # tokens of a chunk, of which the last one is scored
RowCallback = Callable[[int, int, NDArray[np.float32]], None]

_PAD = 256  # llama.cpp rounds sizes of contexts up to it


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a text, each as long as the others."""

    tokens: list[list[int]]  # as they are run
    starts: list[int]  # of each in the text, in tokens
    first: int  # the index of the first scored token of each

    @property
    def n_scored(self) -> int:
        """Scored tokens of a chunk."""
        return len(self.tokens[0]) - self.first


@dataclass(frozen=True, slots=True)
class Estimate:
    """A perplexity, after some chunks."""

    start: int  # of the last chunk in the text, in tokens
    n_tokens: int  # scored so far
    mean: float  # of their negative log-probabilities
    mean_error: float  # its standard error; 0 if it cannot be told

    @property
    def ppl(self) -> float:
        return math.exp(self.mean)

    @property
    def ppl_error(self) -> float:
        return self.mean_error * self.ppl


def tokens_of(llm: Llama, text: str) -> list[int]:
    """The tokens of a text, control tokens as text. Raises Unsupported for a vocabulary whose texts
    end with EOS, TokenizerError."""
    if llm.tokenizer.add_eos:
        raise Unsupported(
            "perplexity: this vocabulary ends each text with a token of its own, which is no text"
        )
    return llm.tokenizer.encode(text, add_bos=True)


def bos_of(llm: Llama) -> int | None:
    """The token that each chunk begins with, if the file asks for one."""
    return llm.tokenizer.bos_id if llm.tokenizer.add_bos else None


def cut(tokens: Sequence[int], n_ctx: int, n_chunks: int = -1, bos: int | None = None) -> Chunks:
    """Chunks of `n_ctx` tokens, which begin with `bos` unless it is None; at most `n_chunks`, if
    that is not -1. Raises ArgumentError for fewer tokens than two chunks have."""
    if n_ctx < LEAST_CTX:
        raise ArgumentError(f"n_ctx is {n_ctx}: a chunk must have at least {LEAST_CTX} tokens")
    if len(tokens) < 2 * n_ctx:
        raise ArgumentError(
            f"the text has {len(tokens)} tokens: with chunks of {n_ctx} it must have at least"
            f" {2 * n_ctx} (-c N makes chunks shorter)"
        )
    n_most = len(tokens) // n_ctx
    n = n_most if n_chunks < 0 else min(n_chunks, n_most)
    starts = [i * n_ctx for i in range(n)]
    begin = [] if bos is None else [bos]
    pieces = [[*begin, *tokens[start + len(begin) : start + n_ctx]] for start in starts]
    return Chunks(pieces, starts, n_ctx // 2 + 1)


def cut_with_stride(tokens: Sequence[int], n_ctx: int, stride: int, n_chunks: int = -1) -> Chunks:
    """Windows that overlap, see the module. Raises ArgumentError for too few tokens, or a stride
    that is not shorter than a window."""
    length = window_length(n_ctx, stride)
    if not 0 < stride < length:
        raise ArgumentError(f"the stride is {stride}: it must be above 0 and below {length}")
    if len(tokens) < 2 * length:
        raise ArgumentError(
            f"the text has {len(tokens)} tokens: with windows of {length} it must have at least"
            f" {2 * length}"
        )
    n_most = -(-(len(tokens) - length) // stride)
    n = n_most if n_chunks < 0 else min(n_chunks, n_most)
    starts = [i * stride for i in range(n)]
    return Chunks([list(tokens[s : s + length]) for s in starts], starts, length - stride)


def window_length(n_ctx: int, stride: int) -> int:
    """Tokens of a window."""
    return -(-(n_ctx + stride // 2) // _PAD) * _PAD


def perplexity(llm: Llama, chunks: Chunks, on_row: RowCallback | None = None) -> Iterator[Estimate]:
    """The estimate after each chunk, in their order; chunks run together on `llm`'s sequences.

    `on_row(chunk, i, logits)` gets the logits [n_vocab] that score the i-th scored token of a
    chunk, of a chunk in their order. Raises BadBatch for chunks longer than a sequence may be.
    """
    if len(chunks.tokens[0]) > llm.n_ctx_seq() + 1:
        raise BadBatch(
            f"chunks have {len(chunks.tokens[0])} tokens: n_ctx_seq is {llm.n_ctx_seq()}"
        )
    texts = [(tokens, chunks.first) for tokens in chunks.tokens]
    callbacks = None
    if on_row is not None:
        callbacks = [_callback(on_row, k, chunks.first) for k in range(len(texts))]
    total, squares, n = 0.0, 0.0, 0
    for start, scored in zip(
        chunks.starts, llm.score_tokens(texts, callbacks=callbacks), strict=True
    ):
        for each in scored:
            total -= each.logprob
            squares += each.logprob * each.logprob
        n += len(scored)
        yield Estimate(start, n, total / n, mean_error(total, squares, n))


def mean_error(total: float, squares: float, n: int) -> float:
    """The standard error of a mean of n numbers, from their sum and that of their squares."""
    variance = squares / n - (total / n) ** 2
    return math.sqrt(variance / (n - 1)) if variance > 0 and n > 1 else 0.0


def _callback(
    on_row: RowCallback, chunk: int, first: int
) -> Callable[[int, NDArray[np.float32]], None]:
    return lambda i, logits: on_row(chunk, i - first, logits)
