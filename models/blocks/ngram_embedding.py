"""Embeddings of n-grams: a token and those before it choose rows of a table by a hash.

As in Qwen4 (2026). Each of the residual streams takes in the embedding, as far as it fits, and a
dilated convolution over those of the tokens before.

Letters in shapes: E n_embd, C streams, N size of the longest n-gram, H rows that a token chooses,
D size of a row (E = D*H), K taps of the convolution, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.recurrent import column_before, keep_columns
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.weights import Weights

MOST_ROWS = 2**31 - 1  # indices of rows are i32
MIN_SCORE = 1e-6


@dataclass(frozen=True, slots=True)
class NGramHash:
    """The rows of a token: for each n from 2 to N, `n_each` of them.

    The n tokens, the last first, are multiplied by a number each and combined by exclusive or;
    the remainder by the size of a part of the table, plus where the part begins, is the row. What
    is at or before an end of a text, or before the sequence, counts as that end.
    """

    multipliers: tuple[int, ...]  # of the token and those before it
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    n_each: int
    eos: int

    @classmethod
    def read(cls, h: HParams) -> NGramHash:
        """The file's `ple.*`. Raises WeightError."""
        keys = h.keys
        N, n_each = keys.count("ple.ngram_size"), keys.count("ple.heads_per_ngram")
        if N < 2:
            raise keys.error("ple.ngram_size", N, "at least 2")
        H = (N - 1) * n_each
        found = {}
        for key, n in (("layer_multipliers", N), ("head_vocab_sizes", H), ("head_offsets", H)):
            found[key] = keys.unsigned(f"ple.{key}")[:n]
            if len(found[key]) < n:
                raise keys.error(f"ple.{key}", f"a list of {len(found[key])}", f"at least {n}")
        sizes, offsets = found["head_vocab_sizes"], found["head_offsets"]
        for size, offset in zip(sizes, offsets, strict=True):
            if not size or size + offset > MOST_ROWS:
                must_be = f"1 to {MOST_ROWS}, with the offset"
                raise keys.error("ple.head_vocab_sizes", size, must_be)
        return cls(
            tuple(found["layer_multipliers"]),
            tuple(sizes),
            tuple(offsets),
            n_each,
            keys.whole("ple.eos_token_id", 0),
        )

    @property
    def n_rows(self) -> int:
        """Rows that the table must have."""
        return max(a + b for a, b in zip(self.sizes, self.offsets, strict=True))

    def rows(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """tokens [T, N], the last first, below 0 where there is none -> [T, H]"""
        before = tokens[:, 1:]
        hidden = np.logical_or.accumulate((before < 0) | (before == self.eos), axis=1)
        context = np.column_stack([tokens[:, 0], np.where(hidden, self.eos, before)])
        context = context.astype(np.uint64)
        mixed = np.bitwise_xor.accumulate(context * np.array(self.multipliers, np.uint64), axis=1)
        by_head = np.repeat(mixed[:, 1:], self.n_each, axis=1)  # [T, H]
        found = by_head % np.array(self.sizes, np.uint64) + np.array(self.offsets, np.uint64)
        return found.astype(np.int64)


def _fill_rows(dst: NDArray[np.int32], _: object, tokens: NDArray[np.float32], ith: int,
               n_tasks: int, hashed: NGramHash) -> None:  # fmt: skip
    """The rows [T, H] of tokens [T, N], which are stored plus 1."""
    dst[0, 0] = hashed.rows(tokens[0, 0].astype(np.int64) - 1)


@dataclass(frozen=True, slots=True)
class NGramEmbedding:
    """What one layer's streams take in of the n-grams."""

    layer: int
    leaf: int  # the first of the two state leaves: tokens, columns of the convolution
    n_taps: int  # of the model's layers
    hashed: NGramHash
    table: Tensor  # [D, rows]
    key: Linear  # [E, C*E]
    value: Linear  # [E, E]
    norms: tuple[Tensor, Tensor, Tensor]  # [E, C] each: of key, query, and convolution
    conv: Tensor  # [K, C*E]
    eps: float

    @classmethod
    def taps(cls, h: HParams) -> int:
        """Taps that the convolution spans: its K, as far apart as the longest n-gram."""
        keys = h.keys
        return (keys.count("ple.conv_kernel") - 1) * keys.count("ple.ngram_size") + 1

    @classmethod
    def take(
        cls, weights: Weights, layer: int, h: HParams, n_taps: int, leaf: int
    ) -> NGramEmbedding:
        """A layer's `ple_*`, and the table."""
        keys, E, hashed = h.keys, h.n_embd, NGramHash.read(h)
        D, C = keys.count("embedding_length_per_layer_input"), keys.count("hyper_connection.count")
        H, blk, table = len(hashed.sizes), f"blk.{layer}.ple", "per_layer_token_embd.weight"
        if D * H != E:
            must_be = f"a share of {E} for each of {H} rows"
            raise keys.error("embedding_length_per_layer_input", D, must_be)
        n_rows = hashed.n_rows
        if weights.has(table):
            n_rows = max(n_rows, weights.ne(table)[1])
        take = partial(Linear.take, weights, scaled=False, biased=False)
        key_norm, query_norm, conv_norm = (
            take_by_stream(weights, f"{blk}_norm_{part}.weight", E, C)
            for part in ("key", "query", "conv")
        )
        return cls(
            layer=layer,
            leaf=leaf,
            n_taps=n_taps,
            hashed=hashed,
            table=weights.take(table, D, n_rows),
            key=take(f"{blk}_key", E, C * E),
            value=take(f"{blk}_value", E, E),
            norms=(key_norm, query_norm, conv_norm),
            conv=weights.take(f"{blk}_conv1d.weight", keys.count("ple.conv_kernel"), C * E),
            eps=h.rms_norm_eps,
        )

    @property
    def state_sizes(self) -> tuple[int, int]:
        """Elements of its two state leaves."""
        before = self.n_taps - 1
        return before, before * self.conv.ne[1]

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, C, T] -> [E, C, T]"""
        with scope("ple"):
            return self._added(x, self._embedding(inputs), inputs)

    def _embedding(self, inputs: GraphInputs) -> Tensor:
        """The rows of each token, side by side: [E, T]"""
        T, N, H = inputs.tokens.ne[0], len(self.hashed.multipliers), len(self.hashed.sizes)
        with scope("tokens"):
            tokens = ops.reshape_2d(inputs.tokens, 1, T)  # [1, T] i32
            stored = ops.scale_bias(ops.cast(tokens, "f32"), 1.0, 1.0)  # 0 is none
            columns = keep_columns(stored, inputs, self.layer, self.leaf)
            context = stored
            for back in range(1, N):
                before = column_before(columns, back, inputs)  # [1, T]
                context = ops.concat(context, before, 0).named(f"last_{back + 1}")
        like = ops.repeat_4d(tokens, H, T, 1, 1).named("rows_like")  # [H, T] i32
        rows = ops.map_custom2(like, context, _fill_rows, 1, self.hashed).named("rows")
        found = ops.get_rows(self.table, ops.reshape_1d(rows, H * T)).named("embd_rows")  # [D, H*T]
        return ops.reshape_2d(found, self.table.ne[0] * H, T)

    def _added(self, x: Tensor, embedding: Tensor, inputs: GraphInputs) -> Tensor:
        E, C, T, _ = x.ne
        key = self._normed(self.key(embedding), 0, (E, C, T), "key_normed")
        query = self._normed(x, 1, (E, C, T), "query_normed")
        score = ops.scale(ops.sum_rows(ops.mul(key, query)), 1.0 / math.sqrt(E)).named("score")
        size = ops.sqrt(ops.clamp(ops.abs(score), MIN_SCORE, float("inf")))  # [1, C, T]
        gate = ops.sigmoid(ops.mul(ops.sgn(score), size).named("score_root")).named("gate")
        value = ops.reshape_3d(self.value(embedding), E, 1, T)
        gated = ops.mul(ops.repeat_4d(value, E, C, T, 1), gate).named("gated_value")
        normed = self._normed(gated, 2, (E, C, T), "conv_normed")
        mixed = self._convolved(ops.reshape_2d(normed, E * C, T), inputs)  # [C*E, T]
        mixed = ops.reshape_3d(ops.silu(mixed), E, C, T).named("conv_out")
        return ops.add(x, ops.add(gated, mixed).named("update")).named("added")

    def _normed(self, x: Tensor, i: int, ne: tuple[int, int, int], name: str) -> Tensor:
        """x of [E, C, T], each stream normed: [E, C, T]"""
        normed = ops.rms_norm(ops.reshape_3d(x, *ne), self.eps)
        return ops.mul(normed.named(f"{name}_plain"), self.norms[i]).named(name)

    def _convolved(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """The dilated convolution of each channel: x [C*E, T] -> [C*E, T]"""
        K, W, _, _ = self.conv.ne
        N = len(self.hashed.multipliers)
        with scope("conv"):
            columns = keep_columns(x, inputs, self.layer, self.leaf + 1)
            by_tap = ops.cont_2d(ops.transpose(ops.cast(self.conv, "f32")), W, K).named("by_tap")
            total: Tensor | None = None
            for k in range(K):
                back = (K - 1 - k) * N
                shifted = x if not back else column_before(columns, back, inputs)
                weight = ops.view_1d(by_tap, W, k * by_tap.nb[1]).named(f"tap_{k}")
                term = ops.mul(shifted, weight).named(f"term_{k}")
                total = term if total is None else ops.add(total, term).named(f"sum_{k}")
        assert total is not None
        return total


def take_by_stream(weights: Weights, name: str, E: int, C: int) -> Tensor:
    """A weight of each element of C streams [E, C], which some files have as [C*E]."""
    if weights.has(name) and weights.ne(name)[:2] == (C * E, 1):
        return ops.reshape_2d(weights.take(name, C * E), E, C)
    return weights.take(name, E, C)
