"""OLMo, the open models of Ai2.

OLMo (Groeneveld et al., 2024) is llama with LayerNorm without weights, and clamps of q, k and v.
OLMo 2 (2025) norms results instead of inputs, and q and k over all heads; OLMo 3 adds windows in
three layers of four, whose rotation is not scaled for longer contexts.
"""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Olmo(PreNormDecoder):
    """An olmo model."""

    norms = "layer"
    output_norm_name = None
    rope_mode = RopeMode.NORMAL

    def set_up(self) -> None:
        """The clamp."""
        self.attn_clamp = self.hparams.keys.real("attention.clamp_kqv", 0.0)

    def layer(self, i: int) -> SequentialLayer:
        """With norms that have no weights."""
        h = self.hparams
        return SequentialLayer(
            attn_norm=Norm.plain("attn_norm", h, "layer"),
            mixer=self.mixer(i),
            ffn_norm=Norm.plain("ffn_norm", h, "layer"),
            ffn=self.ffn(i),
        )


class Olmo2(PreNormDecoder):
    """An olmo2 model."""

    qk_norm = "rms"

    def read(self, file: GGUFFile) -> HParams:
        """With windows where the file has them."""
        h = read_hparams(file)
        return h.with_windows(h.keys.windowed(4), h.layers[0].rope.unscaled())

    def layer(self, i: int) -> SequentialLayer:
        """With norms of results."""
        return SequentialLayer(
            mixer=self.mixer(i),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
        )


class OlmoE(ExpertDecoder):
    """An olmoe model: experts, and norms of q and k over all heads (Muennighoff et al., 2024)."""

    qk_norm = "rms"
    output_bias = False
    normalise = False

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size, which the file gives."""
        return self.hparams.layers[i].n_ff
