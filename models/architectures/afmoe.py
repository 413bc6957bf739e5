"""AFM: gated attention with windows, norms before and after every block, experts. Arcee AI, 2025.

Three layers of four are rotated, and have windows. Dense layers come first.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.layers import Layer, SequentialLayer
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams

NO_ROPE_STEP = 4  # every so many layers have no positions


class AfMoE(SharedExpertDecoder):
    """An afmoe model."""

    qk_norm = "rms"
    attn_gate = "attn_gate"
    output_bias = False
    gating = "sigmoid"
    gating_from_file = True

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = read_hparams(file)
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        return h.with_windows(h.keys.windowed(4), replace(rope, freq_base=base))

    def set_up(self) -> None:
        """The scale of embeddings."""
        super().set_up()
        self.embedding_scale = math.sqrt(self.hparams.n_embd)

    def layer(self, i: int) -> Layer:
        """With norms of inputs and of results."""
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
        )

    def layer_rope(self, i: int) -> Rope | None:
        """None in every fourth layer."""
        return super().layer_rope(i) if (i + 1) % NO_ROPE_STEP else None
