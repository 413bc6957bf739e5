"""Llama: RMSNorm, rotary attention with grouped K/V heads, SwiGLU or a mixture of such experts.

Also Mistral, Mixtral and others whose files name the architecture `llama`. Touvron et al., 2023;
experts as in Jiang et al., 2024.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.experts import Experts
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.layers import PerToken
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


class LlamaEmbed(Llama):
    """A llama-embed model: its tokens attend to all tokens of their sequence."""

    can_generate = False

    def read(self, file: GGUFFile) -> HParams:
        """Not causal, whatever the file says."""
        return replace(read_hparams(file), is_causal=False)
