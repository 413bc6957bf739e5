"""Qwen4 (experimental): Qwen3.5 with several residual streams, mixed by gates of low rank.

Alibaba, 2026. There are no norms before the blocks: each stream is normed, and a block reads the
mean of the streams times their gates; its result is added to each stream with a weight of its own.
Attention is over blocks of tokens that an indexer chooses. Up to `attention.indexer.top_k` tokens
it leaves all, and the result is that of full attention; longer contexts are refused. One layer may
take in embeddings of n-grams.

Letters in shapes: E n_embd, C streams, L low rank, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.architectures.qwen3next import DeltaNetExperts
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.delta_net import GateActivation, GatedDeltaNet
from ggmlpy.models.blocks.hyper_connections import output_streams, spread
from ggmlpy.models.blocks.layers import Layer, Mixer, PerToken, output_rows
from ggmlpy.models.blocks.ngram_embedding import NGramEmbedding, take_by_stream
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class GatedStreams:
    """The mean of the normed streams times their gates; the weights of a result in each."""

    name: str  # of nodes
    norm: Tensor  # [E, C]
    down: Linear  # [C*E, L]
    up: Linear  # [L, C*E]
    inject: Linear | None  # [C*E, C]; None at the end
    eps: float

    @classmethod
    def take(
        cls, weights: Weights, name: str, h: HParams, *, is_last: bool = False
    ) -> GatedStreams:
        """The tensors `{name}_*`."""
        E, C = h.n_embd, h.keys.count("hyper_connection.count")
        L, take = h.keys.count("hyper_connection.low_rank"), partial(Linear.take, weights)
        return cls(
            name=name.rpartition(".")[2],
            norm=take_by_stream(weights, f"{name}_norm.weight", E, C),
            down=take(f"{name}_down", C * E, L, scaled=False, biased=False),
            up=take(f"{name}_up", L, C * E, scaled=False, biased=False),
            inject=None
            if is_last
            else take(f"{name}_inject", C * E, C, scaled=False, biased=False),
            eps=h.rms_norm_eps,
        )

    def read(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [E, C, T] -> what the block reads [E, T], the weights of its result [C, T]"""
        E, C, T, _ = x.ne
        with scope(self.name):
            normed = ops.mul(ops.rms_norm(x, self.eps), self.norm).named("normed")
            flat = ops.reshape_2d(normed, C * E, T)
            low = ops.scale(self.down(flat), 1.0 / C).named("low")  # [L, T]
            gate = ops.reshape_3d(self.up(ops.silu(low)), E, C, T)
            mixed = ops.dsv4_hc_pre_gated(normed, gate, 1.0 / C).named("mixed")
            if self.inject is None:
                return mixed, None
            weights = ops.sigmoid(ops.scale(self.inject(flat), 1.0 / C).named("inject_scaled"))
            return mixed, ops.scale(weights, 2.0).named("weights")


@dataclass(frozen=True, slots=True)
class StreamLayer:
    """One layer of all streams."""

    ngrams: NGramEmbedding | None
    attn: GatedStreams
    mixer: Mixer
    ffn_streams: GatedStreams
    ffn: PerToken

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """What the mixer keeps, and the embedding of n-grams beside it."""
        if self.ngrams is None:
            return self.mixer.memory
        (own,) = self.mixer.memory
        assert isinstance(own, LayerState)
        return (replace(own, sizes=(*own.sizes, *self.ngrams.state_sizes)),)

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, C, T] -> [E, C, T]; in the last layer [E, C, O]"""
        if self.ngrams is not None:
            x = self.ngrams(x, inputs)
        h, weights = self.attn.read(x)
        h = self.mixer(h, inputs)
        assert weights is not None
        if is_last:
            x = output_streams(inputs, x)
            h, weights = output_rows(inputs, h, weights)
        x = ops.dsv4_hc_post(h, x, weights, None).named("hc_attn_combine")
        h, weights = self.ffn_streams.read(x)
        assert weights is not None
        return ops.dsv4_hc_post(self.ffn(h), x, weights, None).named("l_last")


class Qwen4Exp(DeltaNetExperts):
    """A qwen4exp model."""

    rope_mode = RopeMode.IMROPE
    output_norm_name: ClassVar[str | None] = None
    delta_gate: ClassVar[GateActivation] = "sigmoid"
    attn_biased = False
    n_taps = 0  # see GatedDeltaNet

    def set_up(self) -> None:
        """The streams, and the longest context for which the indexer need not be asked."""
        super().set_up()
        h, keys = self.hparams, self.hparams.keys
        self.ngram_layers = keys.integers("ple.layers")
        if len(self.ngram_layers) > 1 or any(
            i >= h.n_layer or not self.recurrent[i] for i in self.ngram_layers
        ):
            raise keys.error("ple.layers", self.ngram_layers, "one layer that is a delta net")
        if self.ngram_layers:
            self.n_taps = max(keys.count("ssm.conv_kernel"), NGramEmbedding.taps(h))
        self.n_stream = keys.count("hyper_connection.count")
        if self.n_stream < 2:
            raise keys.error("hyper_connection.count", self.n_stream, "at least 2")
        ratios = keys.per_layer("attention.compress_ratios", 0)
        is_sparse = any(ratio and not self.recurrent[i] for i, ratio in enumerate(ratios))
        self.leave_indexer(keys.count("attention.indexer.top_k") if is_sparse else None)
        self.output_streams = GatedStreams.take(self.weights, "output_hc", h, is_last=True)

    def layer(self, i: int) -> Layer:
        """Of all streams."""
        h, weights = self.hparams, self.weights
        ngrams = None
        if i in self.ngram_layers:
            ngrams = NGramEmbedding.take(weights, i, h, self.n_taps, leaf=2)
        return StreamLayer(
            ngrams=ngrams,
            attn=GatedStreams.take(weights, f"blk.{i}.hc_attn", h),
            mixer=self.mixer(i),
            ffn_streams=GatedStreams.take(weights, f"blk.{i}.hc_ffn", h),
            ffn=self.ffn(i),
        )

    def mixer(self, i: int) -> Mixer:
        """Delta nets keep as many columns as embeddings of n-grams."""
        mixer = super().mixer(i)
        return replace(mixer, n_taps=self.n_taps) if isinstance(mixer, GatedDeltaNet) else mixer

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The same embedding in every stream: [E, C, T]"""
        return spread(super().embed(inputs), self.n_stream)

    def embeddings(self, inputs: GraphInputs) -> Tensor:
        """The mixture of the streams takes the place of a norm: [E, O]"""
        return self.output_streams.read(self.hidden(inputs))[0].named("result_norm")
