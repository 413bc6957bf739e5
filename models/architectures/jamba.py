"""Jamba: Mamba in most layers, attention without positions in some; experts in every other one.

AI21 Labs (Lieber et al.), 2024.
"""

from __future__ import annotations

from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.experts import Experts, take_router
from ggmlpy.models.blocks.layers import Mixer, PerToken
from ggmlpy.models.blocks.state_space import Mamba
from ggmlpy.models.pre_norm import PreNormDecoder


class Jamba(PreNormDecoder):
    """A jamba model."""

    def mixer(self, i: int) -> Mixer:
        """Mamba in layers without K/V heads."""
        if not self.hparams.layers[i].n_head_kv:
            return Mamba.take(self.weights, i, self.hparams)
        return super().mixer(i)

    def layer_rope(self, i: int) -> Rope | None:
        """None."""
        return None

    def ffn(self, i: int) -> PerToken:
        """Experts where the layer has a router; their weights are those of the softmax."""
        h, weights = self.hparams, self.weights
        if not weights.has(f"blk.{i}.ffn_gate_inp.weight"):
            return super().ffn(i)
        scale = h.keys.real("expert_weights_scale", 0.0)
        router = take_router(weights, i, h, normalise=False, scale=scale)
        return Experts.take(weights, i, h, router, n_ff=h.layers[i].n_ff, scaled=False)
