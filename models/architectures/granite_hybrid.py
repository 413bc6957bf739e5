"""Granite 4 hybrid: granite with Mamba-2 in most layers; attention, mostly without positions, in
some; experts with a shared one. IBM, 2025.

Embeddings, residuals, attention and logits are scaled by factors of the file.
"""

from __future__ import annotations

from ggmlpy.models.blocks import Rope
from ggmlpy.models.experts import Experts, take_router
from ggmlpy.models.layers import Layer, Mixer, PerToken, SequentialLayer
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.models.self_attention import SelfAttention
from ggmlpy.models.state_space import Mamba2
from ggmlpy.ops.rope import RopeMode


class GraniteHybrid(PreNormDecoder):
    """A granitehybrid model."""

    rope_mode = RopeMode.NORMAL

    def set_up(self) -> None:
        """The scales of the file, where 0 stands for 1."""
        keys = self.hparams.keys
        self.embedding_scale = keys.real("embedding_scale", 0.0) or 1.0
        self.residual_scale = keys.real("residual_scale", 0.0) or 1.0
        self.attention_scale = keys.real("attention.scale", 0.0) or None
        self.logit_scale = 1.0 / (keys.real("logit_scale", 0.0) or 1.0)

    def layer(self, i: int) -> Layer:
        """With scaled residuals."""
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            residual_scale=self.residual_scale,
        )

    def mixer(self, i: int) -> Mixer:
        """Mamba-2 in layers without K/V heads."""
        h, weights = self.hparams, self.weights
        if not h.layers[i].n_head_kv:
            return Mamba2.take(weights, i, h)
        return SelfAttention.take(weights, i, h, self.layer_rope(i), scale=self.attention_scale)

    def layer_rope(self, i: int) -> Rope | None:
        """None unless `rope.scaling.finetuned` says that the model has positions."""
        return (
            super().layer_rope(i)
            if self.hparams.keys.flag("rope.scaling.finetuned", True)
            else None
        )

    def ffn(self, i: int) -> PerToken:
        """Experts where the layer has a router."""
        h, weights, keys = self.hparams, self.weights, self.hparams.keys
        if not weights.has(f"blk.{i}.ffn_gate_inp.weight"):
            return super().ffn(i)
        router = take_router(weights, i, h, scale=keys.real("expert_weights_scale", 0.0))
        n_shared = keys.whole("expert_shared_feed_forward_length", 0)
        return Experts.take(
            weights, i, h, router, n_ff=h.layers[i].n_ff, n_ff_shared=n_shared, scaled=False
        )
