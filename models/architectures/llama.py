"""Llama: RMSNorm, rotary attention with grouped K/V heads, SwiGLU or a mixture of such experts.

Also Mistral, Mixtral and others whose files name the architecture `llama`. Touvron et al., 2023;
experts as in Jiang et al., 2024.
"""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.experts import Experts
from ggmlpy.models.feed_forward import FeedForward
from ggmlpy.models.hparams import read_hparams
from ggmlpy.models.layers import SequentialLayer
from ggmlpy.models.self_attention import SelfAttention
from ggmlpy.ops.rope import RopeMode


class Llama(Decoder):
    """A llama-family model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        self.make_layers(self._layer)

    def _layer(self, i: int) -> SequentialLayer:
        h, weights = self.hparams, self.weights
        ffn = Experts if h.n_expert else FeedForward
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=SelfAttention.take(weights, i, h, self.rope(i, RopeMode.NORMAL)),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=ffn.take(weights, i, h),
        )
