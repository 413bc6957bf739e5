"""Phi: Microsoft's small models.

Phi-2 (2023) runs attention and the feed-forward block in parallel behind one LayerNorm. Phi-3
(Abdin et al., 2024) is llama with q, k and v in one map, gate and up in another, and two sets of
rotary factors for short and long contexts (longrope); Phi-4 files are phi3 too. As in llama.cpp,
the window that some files of Phi-3 name is not applied: every token sees all before it.
"""

from __future__ import annotations

from ggmlpy.models.blocks.layers import ParallelLayer
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.pre_norm import PreNormDecoder


class Phi2(PreNormDecoder):
    """A phi2 model."""

    norms = "layer"
    activation = "gelu"

    def layer(self, i: int) -> ParallelLayer:
        """With one norm."""
        return ParallelLayer(
            attn_norm=self.norm(i, "attn_norm"), mixer=self.mixer(i), ffn=self.ffn(i)
        )


class Phi3(PreNormDecoder):
    """A phi3 model."""


class PhiMoE(ExpertDecoder):
    """A phimoe model: Phi-3.5-MoE, with LayerNorm's biases beside RMSNorm's weights."""

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size, which the file gives."""
        return self.hparams.layers[i].n_ff
