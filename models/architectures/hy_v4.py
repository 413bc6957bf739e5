"""Hunyuan 4: latent attention with sinks and a gate, experts, and several residual streams.

Tencent, 2026. Its hyper-connections are independent: a block reads a weighted sum of the streams,
and adds its result to each with another weight. In some files an indexer chooses the cells of
attention. Up to `attention.indexer.top_k` cells it leaves all, and the result is that of full
attention; longer contexts are refused.
"""

from __future__ import annotations

from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.hyper_connections import HyperConnection, HyperLayer, StreamLogits, spread
from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.blocks.layers import Layer, Mixer
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.ops.rope import RopeMode


class Hunyuan4(SharedExpertDecoder):
    """A hy_v4 model."""

    rope_mode = RopeMode.NORMAL
    rope_factored = False
    output_biased = False
    gating = None
    limited = True
    limit_first = True

    def set_up(self) -> None:
        """Dense layers, streams, and the longest context for which no indexer need be asked."""
        super().set_up()
        h, keys = self.hparams, self.hparams.keys
        self.leave_indexer(keys.whole("attention.indexer.top_k", 0) or None)
        self.n_stream = keys.count("hyper_connection.count")
        self.head = StreamLogits.take(self.weights, "output_hc", h, self.n_stream, 1)

    def layer(self, i: int) -> Layer:
        """Of all streams."""
        h, weights = self.hparams, self.weights
        return HyperLayer(
            attn=HyperConnection.take(weights, i, "attn", h, independent=True),
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_hc=HyperConnection.take(weights, i, "ffn", h, independent=True),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            head=self.head,
        )

    def mixer(self, i: int) -> Mixer:
        """Latent attention."""
        rope = self.rope(i, self.rope_mode)
        return LatentAttention.take(
            self.weights, i, self.hparams, rope, scaled=False, output_scaled=False
        )

    def shared_limit(self, i: int) -> float:
        """Only the activation of chosen experts has a limit."""
        return 0.0

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The same embedding in every stream: [E, C, T]"""
        return spread(super().embed(inputs), self.n_stream)
