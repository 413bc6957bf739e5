"""Qwen2: llama with biases on q, k and v, and rope over pairs (i, i + D/2).

Also Qwen2.5. Yang et al., 2024.
"""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.feed_forward import FeedForward
from ggmlpy.models.hparams import read_hparams
from ggmlpy.models.layers import SequentialLayer
from ggmlpy.models.self_attention import SelfAttention
from ggmlpy.ops.rope import RopeMode


class Qwen2(Decoder):
    """A qwen2-family model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        self.make_layers(self._layer)

    def _layer(self, i: int) -> SequentialLayer:
        h, weights = self.hparams, self.weights
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=SelfAttention.take(weights, i, h, self.rope(i, RopeMode.NEOX)),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=FeedForward.take(weights, i, h, scaled=False),
        )
