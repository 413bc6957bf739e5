"""AFM: gated attention with windows, norms before and after every block, experts. Arcee AI, 2025.

Three layers of four are rotated, and have windows. Dense layers come first.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import POST_NORMS

NO_ROPE_STEP = 4  # every so many layers have no positions


class AfMoE(SharedExpertDecoder):
    """An afmoe model."""

    post_norms = POST_NORMS
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

    def layer_rope(self, i: int) -> Rope | None:
        """None in every fourth layer."""
        return super().layer_rope(i) if (i + 1) % NO_ROPE_STEP else None
