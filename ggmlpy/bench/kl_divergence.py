"""How much a model differs from another one, by its predictions on the same text.

The other model's, mostly before quantization, are in a file that llama-perplexity writes too
(`--kl-divergence-base`):

    "_logits_" | n_ctx i32 | n_vocab i32 | n_chunk i32 | the text's tokens i32 [n_chunk, n_ctx]
    for each scored token: scale f32, lowest f32, then u16 for each token of the vocabulary, and one
    more if their number is odd: its log-probability is scale * u16 + lowest, at least -16 or so

Its numbers are computed in f32, in llama.cpp's order, so that files are equal where logits are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggmlpy.bench.perplexity import mean_error
from ggmlpy.errors import ArgumentError, FileError

_MAGIC = b"_logits_"
_HEAD = 20  # bytes
_MOST_BELOW = np.float32(16)  # the most likely token; what is less likely counts as that
_LEAST_TOKENS = 10  # for errors of means, as in llama.cpp

Row = NDArray[np.float32]


def row_words(n_vocab: int) -> int:
    """Words of 16 bits that a scored token takes."""
    return 2 * ((n_vocab + 1) // 2) + 4


class BaseWriter:
    """Writes a file of predictions, whose rows may come in any order."""

    def __init__(self, path: Path, chunks: Sequence[Sequence[int]], n_vocab: int) -> None:
        """`chunks` are those of the text, before BOS was put in. Raises FileError."""
        n_ctx = len(chunks[0])
        self._n_rows, self._path = n_ctx - 1 - n_ctx // 2, path
        tokens = np.array(chunks, np.int32)
        head = np.array([n_ctx, n_vocab, len(chunks)], np.int32)
        shape = (len(chunks) * self._n_rows, row_words(n_vocab))
        try:
            path.write_bytes(_MAGIC + head.tobytes() + tokens.tobytes())
            self._rows = np.memmap(path, np.uint16, "r+", _HEAD + tokens.nbytes, shape)
        except OSError as error:
            raise FileError(f"{path}: the file cannot be written: {error.strerror}") from None

    def add(self, chunk: int, i: int, logits: Row) -> None:
        """The logits that score the i-th scored token of a chunk."""
        self._rows[chunk * self._n_rows + i] = packed(logits)

    def close(self) -> None:
        """Write what was not written yet."""
        self._rows.flush()


def packed(logits: Row) -> NDArray[np.uint16]:
    """The log-probabilities of a row as a file has them."""
    largest = logits.max()
    lowest = max(logits.min(), largest - _MOST_BELOW)
    log_sum = np.float32(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    scale = (largest - lowest) / np.float32(65535)
    row = np.zeros(row_words(len(logits)), np.uint16)
    row[:4] = np.array([scale, lowest - largest - log_sum], np.float32).view(np.uint16)
    if scale > 0:
        steps = np.rint((np.float32(1) / scale) * (logits - lowest))
        row[4 : 4 + len(logits)] = np.where(logits > lowest, steps, 0).astype(np.uint16)
    return row


class Base:
    """A file of predictions. Raises FileError for a damaged one."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
            n_bytes = path.stat().st_size
        except OSError as error:
            raise FileError(f"{path}: the file cannot be read: {error.strerror}") from None
        if len(head) < _HEAD or head[:8] != _MAGIC:
            raise FileError(
                f"{path}: no file of predictions: it does not begin with {_MAGIC.decode()}"
            )
        self.n_ctx, self.n_vocab, self.n_chunks = np.frombuffer(head, np.int32, 3, 8).tolist()
        if min(self.n_ctx - 3, self.n_vocab, self.n_chunks) < 1:
            raise FileError(
                f"{path}: the file has {self.n_chunks} chunks of {self.n_ctx} tokens, and"
                f" {self.n_vocab} of a vocabulary: too few to be right"
            )
        self.n_rows = self.n_ctx - 1 - self.n_ctx // 2  # of a chunk
        words = row_words(self.n_vocab)
        n_tokens = self.n_chunks * self.n_ctx
        needed = _HEAD + 4 * n_tokens + 2 * words * self.n_chunks * self.n_rows
        if n_bytes < needed:
            raise FileError(f"{path}: the file has {n_bytes} bytes: its head asks for {needed}")
        tokens = np.memmap(path, np.int32, "r", _HEAD, (self.n_chunks, self.n_ctx))
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= self.n_vocab:
            raise FileError(
                f"{path}: the file has tokens {lowest} to {highest}: they must be in 0 .."
                f" {self.n_vocab - 1}"
            )
        self.chunks: list[list[int]] = tokens.tolist()
        shape = (self.n_chunks * self.n_rows, words)
        self._rows = np.memmap(path, np.uint16, "r", _HEAD + 4 * n_tokens, shape)

    def logprobs(self, chunk: int, i: int) -> Row:
        """The log-probabilities [n_vocab] of the i-th scored token of a chunk."""
        row = np.asarray(self._rows[chunk * self.n_rows + i])
        scale, lowest = row[:4].view(np.float32)
        found: Row = scale * row[4 : 4 + self.n_vocab].astype(np.float32) + lowest
        return found


@dataclass(slots=True)
class Divergence:
    """Sums over scored tokens: of two models' log-probabilities, and how far apart they are."""

    base: Base
    n: int = 0
    n_same_top: int = 0
    nll: list[float] = field(default_factory=list)
    nll_base: list[float] = field(default_factory=list)
    kld: list[float] = field(default_factory=list)
    p_diff: list[float] = field(default_factory=list)

    def add(self, chunk: int, i: int, logits: Row) -> None:
        """The logits that score the i-th scored token of a chunk."""
        base = self.base.logprobs(chunk, i)
        token = self.base.chunks[chunk][self.base.n_ctx // 2 + 1 + i]
        largest = logits.max()
        log_sum = np.float32(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
        total = largest + log_sum
        nll, nll_base = total - logits[token], -base[token]
        seen = base > -_MOST_BELOW
        parts = np.exp(base[seen]) * (base[seen] - logits[seen] + total)
        self.n += 1
        self.n_same_top += int(logits.argmax() == base.argmax())
        self.nll.append(float(nll))
        self.nll_base.append(float(nll_base))
        self.kld.append(float(parts.sum(dtype=np.float64)))
        self.p_diff.append(float(np.exp(-nll) - np.exp(-nll_base)))

    def check(self, n_vocab: int) -> None:
        """Raise ArgumentError for a model of another vocabulary."""
        if n_vocab != self.base.n_vocab:
            raise ArgumentError(
                f"the predictions are of {self.base.n_vocab} tokens, the model's vocabulary has"
                f" {n_vocab}"
            )

    # --- what they say: each with its standard error ---

    def statistics(self) -> dict[str, tuple[float, float]]:
        """By name, a value and its standard error."""
        q, q_error = _mean(self.nll)
        base, base_error = _mean(self.nll_base)
        covariance = self._covariance()
        ratio_error = math.sqrt(max(0.0, q_error**2 + base_error**2 - 2 * covariance))
        ppl, ppl_base, ratio = math.exp(q), math.exp(base), math.exp(q - base)
        difference = (ppl * q_error) ** 2 + (ppl_base * base_error) ** 2
        square, square_error = _mean([d * d for d in self.p_diff])
        rms = math.sqrt(square)
        same = self.n_same_top / self.n
        return {
            "ppl": (ppl, ppl * q_error),
            "ppl_base": (ppl_base, ppl_base * base_error),
            "ln_ratio": (q - base, ratio_error),
            "ratio": (ratio, ratio * ratio_error),
            "difference": (
                ppl - ppl_base,
                math.sqrt(max(0.0, difference - 2 * ppl * ppl_base * covariance)),
            ),
            "kld": _mean(self.kld),
            "p_diff": _mean(self.p_diff),
            "rms_p_diff": (rms, 0.5 / rms * square_error if rms else 0.0),
            "same_top": (same, math.sqrt(same * (1 - same) / max(1, self.n - 1))),
        }

    def correlation(self) -> float:
        """Of the two models' log-probabilities; NaN if it cannot be told."""
        errors = _mean(self.nll)[1] * _mean(self.nll_base)[1]
        return self._covariance() / errors if errors else math.nan

    def _covariance(self) -> float:
        if self.n < _LEAST_TOKENS:
            return 0.0
        product = sum(a * b for a, b in zip(self.nll, self.nll_base, strict=True)) / self.n
        means = sum(self.nll) / self.n * sum(self.nll_base) / self.n
        return (product - means) / (self.n - 1)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    total, squares = sum(values), sum(v * v for v in values)
    return total / n, mean_error(total, squares, n) if n > _LEAST_TOKENS else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The number below which this share of the numbers lies."""
    return float(np.quantile(np.array(values, np.float32), share, method="linear"))
