"""Laguna: attention gated by softplus for each head, windows in three layers of four, experts.

Poolside, 2026. Layers with full attention have YaRN and may rotate another part of a head.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams


class Laguna(SharedExpertDecoder):
    """A laguna model."""

    gating = "sigmoid"
    gating_from_file = True

    def read(self, file: GGUFFile) -> HParams:
        """With windows, whose layers have plain positions."""
        h = read_hparams(file)
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        return h.with_windows(h.keys.windowed(4, full_first=True), rope.unscaled(base))

    def mixer(self, i: int) -> SelfAttention:
        """With the gate."""
        rope = self.layer_rope(i)
        attention = SelfAttention.take(
            self.weights, i, self.hparams, rope, qk_norm="rms", gate="attn_gate", output_bias=False
        )
        return replace(attention, gate_activation="softplus")

    def n_ff_shared(self, i: int) -> int:
        """As the file says, or one expert's size."""
        keys = self.hparams.keys
        own = keys.whole("expert_shared_feed_forward_length", 0)
        return own or self.n_ff_expert(i) * keys.whole("expert_shared_count", 1)
