"""Llama: RMSNorm, rotary attention with grouped K/V heads, SwiGLU or a mixture of such experts.

Also Mistral, Mixtral and others whose files name the architecture `llama`. Touvron et al., 2023;
experts as in Jiang et al., 2024.
"""

from __future__ import annotations

from ggmlpy.models.blocks.experts import Experts
from ggmlpy.models.blocks.layers import PerToken
from ggmlpy.models.encoder import Encoder
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Llama(PreNormDecoder):
    """A llama-family model."""

    rope_mode = RopeMode.NORMAL
    ffn_scaled = True

    def ffn(self, i: int) -> PerToken:
        """Experts where the file has them, of the size of a dense block."""
        h = self.hparams
        if not h.n_expert:
            return super().ffn(i)
        return Experts.take(self.weights, i, h, n_ff=h.layers[i].n_ff)


class LlamaEmbed(Encoder, Llama):
    """A llama-embed model: its tokens attend to all tokens of their text, and it gives embeddings.
    Some files have a map to logits all the same."""

    def set_up(self) -> None:
        """Leave that map unused."""
        self.weights.without_effect("output.weight")
