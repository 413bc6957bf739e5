"""Llama: RMSNorm, rotary attention with grouped K/V heads, SwiGLU or a mixture of such experts.

Also Mistral, Mixtral and others whose files name the architecture `llama`. Touvron et al., 2023;
experts as in Jiang et al., 2024.
"""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks import FeedForward, Norm, Rope, SelfAttention
from ggmlpy.models.decoder import Decoder, PreNormLayer
from ggmlpy.models.experts import Experts
from ggmlpy.models.hparams import attention_layers, read_hparams
from ggmlpy.ops.rope import RopeMode


class Llama(Decoder):
    """A llama-family model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        self.memory = (attention_layers(self.hparams),)
        self.layers = [self._layer(i) for i in range(self.hparams.n_layer)]

    def _layer(self, i: int) -> PreNormLayer:
        h, weights = self.hparams, self.weights
        freq_factors = weights.maybe("rope_freqs.weight", h.rope.n_dims // 2)
        rope = Rope(h.rope, RopeMode.NORMAL, freq_factors)
        ffn = Experts if h.n_expert else FeedForward
        return PreNormLayer(
            attn_norm=Norm.take(weights, f"blk.{i}.attn_norm", h.n_embd, h),
            mixer=SelfAttention.take(weights, i, h, rope),
            ffn_norm=Norm.take(weights, f"blk.{i}.ffn_norm", h.n_embd, h),
            ffn=ffn.take(weights, i, h),
        )
