"""Embeddings and scores of texts: many texts in a batch, pooled on the host.

Letters in shapes, of numpy arrays: n tokens of a text, E n_embd, N texts, C labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError, BadBatch, Unsupported
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import from_numpy
from ggmlpy.memory.batch import Batch, check_tokens
from ggmlpy.models import Model
from ggmlpy.models.control_vector import ControlVector
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import room_for
from ggmlpy.runtime.lora import Scales
from ggmlpy.sched.executable import Executable

Vector = NDArray[np.float32]


class Pooling(IntEnum):
    """What a text's embedding is made of, with llama.cpp's numbers."""

    NONE = 0  # the embeddings of all tokens
    MEAN = 1
    CLS = 2  # that of the first token
    LAST = 3
    RANK = 4  # the scores of a classifier

    @classmethod
    def named(cls, name: str) -> Pooling:
        """By its name in lower case. Raises ArgumentError."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(each.name.lower() for each in cls)
            raise ArgumentError(f"pooling is {quoted(name)}: it must be one of {known}") from None


def pooling_of(model: Model) -> Pooling:
    """What the file says, `NONE` if it does not. Raises WeightError for an unknown number."""
    keys = model.hparams.keys
    found = keys.whole("pooling_type", Pooling.NONE)
    if found not in set(Pooling):
        raise keys.error("pooling_type", found, f"0 to {max(Pooling)}")
    return Pooling(found)


class Embedder:
    """Embeddings of texts. A text's embedding has the same bits whatever the others are."""

    def __init__(self, context: Context) -> None:
        """`context` gives embeddings, and its sequences share all cells."""
        self._context = context

    def use_lora(self, scales: Scales) -> None:
        """Let all texts have these adapters."""
        for seq in range(self._context.sizes.n_seq_max):
            self._context.use_lora(seq, scales)

    def use_control_vector(self, vector: ControlVector | None) -> None:
        """Let all texts have this control vector."""
        if self._context.control_vector is not vector:
            self._context.set_control_vector(vector)

    def unload_lora(self, adapter: LoraAdapter) -> None:
        """Let go of an adapter."""
        self._context.unload_lora(adapter)

    def embed(
        self, texts: Sequence[Sequence[int]], pooling: Pooling, *, normalise: bool
    ) -> list[Vector]:
        """Of each text, as tokens, its embedding [E]; without pooling [n, E], with RANK scores [C].

        With `normalise` embeddings have the length 1. Raises BadBatch for a text without tokens,
        with tokens outside the vocabulary or too many of them, Unsupported for RANK without a
        classifier.
        """
        self.check(texts)
        if pooling is Pooling.RANK:
            return self._scores(texts)
        found = self._pooled(texts, pooling)
        return [_normalised(each) for each in found] if normalise else found

    def _scores(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        """[C] each"""
        model = self._context.model
        classifier = model.classifier
        if classifier is None:
            raise Unsupported(
                f"this {model.hparams.architecture} model has no classifier: it gives embeddings,"
                " no scores"
            )
        one = Pooling.LAST if self._context.is_causal else Pooling.CLS
        pooled = self._pooled(texts, Pooling.MEAN if classifier.of_mean else one)
        if not pooled:
            return []
        scores = classifier(from_numpy(np.stack(pooled)))  # [C, N]
        executable = Executable(Graph(scores), self._context.backends)
        executable.run()
        return list(executable.array(scores)[0, 0].copy())

    def _pooled(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[Vector]:
        """[E] each, or [n, E]"""
        found: list[Vector] = []
        for batch in self.batches(texts):
            found += self._run(batch, pooling)
        return found

    def check(self, texts: Sequence[Sequence[int]]) -> None:
        """Raises BadBatch for texts that cannot be embedded."""
        h, sizes = self._context.model.hparams, self._context.sizes
        most, limit = sizes.n_ctx_seq, "n_ctx_seq"
        if not self._context.is_causal and sizes.n_ubatch < most:
            most, limit = sizes.n_ubatch, "n_ubatch"
        for i, tokens in enumerate(texts):
            check_tokens(tokens, h.n_vocab)
            if len(tokens) > most:
                room = (
                    f"n_ubatch={len(tokens)}"
                    if limit == "n_ubatch"
                    else room_for(sizes, len(tokens))
                )
                raise BadBatch(
                    f"text {i} has {len(tokens)} tokens: {limit} is {most}; {room} would do"
                )

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """As many texts at a time as fit one ubatch, at least one."""
        sizes = self._context.sizes
        batch: list[Sequence[int]] = []
        n_tokens = 0
        for tokens in texts:
            is_full = n_tokens + len(tokens) > sizes.n_ubatch or len(batch) == sizes.n_seq_max
            if batch and is_full:
                yield batch
                batch, n_tokens = [], 0
            batch.append(tokens)
            n_tokens += len(tokens)
        if batch:
            yield batch

    def _run(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> list[Vector]:
        batch, n_outputs = Batch(), []
        for seq, tokens in enumerate(texts):
            outputs = _outputs(len(tokens), pooling)
            n_outputs.append(sum(outputs))
            for at, token in enumerate(tokens):
                batch.add(int(token), at, (seq,), outputs[at])
        self._context.clear()
        try:
            rows = self._context.decode_batch(batch)
            parts = np.split(rows, np.cumsum(n_outputs)[:-1])
            return [_pooled(part, pooling) for part in parts]
        finally:
            self._context.clear()


def _outputs(n: int, pooling: Pooling) -> list[bool]:
    """Which of n tokens pooling reads."""
    if pooling is Pooling.CLS:
        return [True] + [False] * (n - 1)
    if pooling is Pooling.LAST:
        return [False] * (n - 1) + [True]
    return [True] * n


def _pooled(rows: Vector, pooling: Pooling) -> Vector:
    """rows [n, E] -> [E], or all of them"""
    if pooling is Pooling.NONE:
        return rows.copy()
    if pooling is Pooling.MEAN:
        mean: Vector = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    one: Vector = rows[0].copy()
    return one


def scaled(x: Vector, kind: int) -> Vector:
    """Each row as llama-embedding normalises it: -1 not at all, 0 the largest magnitude to 32760,
    else by the p-norm with p = `kind`: 1 taxicab, 2 Euclidean. Zeros stay."""
    if kind < 0:
        return x
    exact = np.abs(x.astype(np.float64))
    if kind == 0:
        norms = exact.max(axis=-1, keepdims=True) / 32760
    else:
        norms = (exact**kind).sum(axis=-1, keepdims=True) ** (1 / kind)
    found: Vector = (x / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    return found


def _normalised(x: Vector) -> Vector:
    """Each row divided by its Euclidean norm; zeros stay."""
    exact = x.astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=-1, keepdims=True))
    scaled: Vector = (exact / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    return scaled
