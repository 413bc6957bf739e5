"""CogVLM (Wang et al., 2023): llama with a second set of weights in each layer, for images.

Images come as embeddings from another model and are not supported: those weights have no effect.
Rope is llama.cpp's for it, whatever the file says: base 10,000, all dimensions, no scaling.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.pre_norm import PreNormDecoder

_IMAGE_WEIGHTS = re.compile(r"blk\.\d+\.vis_")


class CogVLM(PreNormDecoder):
    """A cogvlm model."""

    output_biased = False
    rope_factored = False
    ffn_biased = False

    def set_up(self) -> None:
        """Leave out what is for images."""
        self.weights.without_effect_where(_IMAGE_WEIGHTS)

    def mixer(self, i: int) -> Mixer:
        """The attention of layer i."""
        return SelfAttention.take(
            self.weights, i, self.hparams, self.layer_rope(i), output_bias=False, qkv_plain=True
        )

    def layer_rope(self, i: int) -> Rope:
        """The rotary embedding of all layers."""
        p = self.hparams.layers[i]
        params = replace(p.rope.unscaled(10_000.0), n_dims=p.n_embd_head_k)
        return Rope(params, self.rope_mode)
