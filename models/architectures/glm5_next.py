"""GLM-5 Next: Kimi Delta Attention in most layers, latent attention without positions in some,
four residual streams, experts. Zhipu AI, 2026.

Latent attention is over pools of tokens that an indexer chooses. Up to `attention.indexer.top_k`
tokens it leaves all, and the result is that of full attention; longer contexts are refused.
"""

from __future__ import annotations

from ggmlpy.errors import Unsupported
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.hyper_connections import HyperConnection, HyperLayer, spread
from ggmlpy.models.blocks.kimi_delta import KimiDelta, read_decay
from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.blocks.layers import Layer, Mixer
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.inputs import GraphInputs

L2_EPS = 1e-6  # of the length of q and k of delta nets


class Glm5Next(SharedExpertDecoder):
    """A glm5-next model. Layers without K/V heads are delta nets."""

    gating = "sigmoid"
    gating_from_file = True
    rotary = False
    output_biased = False
    limited = True
    limit_first = True

    def set_up(self) -> None:
        """Dense layers, and the longest context for which the indexer need not be asked."""
        super().set_up()
        keys = self.hparams.keys
        if not keys.flag("attention.indexer.kpool_select_tail", True):
            raise Unsupported(f"{keys.file}: attention.indexer.kpool_select_tail false")
        self.leave_indexer(keys.count("attention.indexer.top_k"))
        self.n_stream = keys.count("hyper_connection.count")
        self.decay = read_decay(keys)

    def layer(self, i: int) -> Layer:
        """Of all streams."""
        h, weights = self.hparams, self.weights
        return HyperLayer(
            attn=HyperConnection.take(weights, i, "attn", h),
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_hc=HyperConnection.take(weights, i, "ffn", h),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
        )

    def mixer(self, i: int) -> Mixer:
        """A delta net or latent attention."""
        h, weights = self.hparams, self.weights
        if not h.layers[i].n_head_kv:
            return KimiDelta.take(weights, i, h, self.decay, eps=L2_EPS)
        return LatentAttention.take(weights, i, h, None, scaled=False, output_scaled=False)

    def shared_limit(self, i: int) -> float:
        """That of the experts, unless the file has another."""
        own = self.hparams.keys.has("swiglu_clamp_shexp")
        return super().shared_limit(i) if own else self.expert_limit(i)

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The same embedding in every stream: [E, C, T]"""
        return spread(super().embed(inputs), self.n_stream)
