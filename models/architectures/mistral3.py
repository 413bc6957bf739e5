"""Mistral 3: Ministral 3 and what follows it. Llama whose q grows with the position, with YaRN.

Mistral AI, 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.self_attention import SelfAttention, Temperature
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.ops.rope import RopeMode


class Mistral3(ExpertDecoder):
    """A mistral3 model, dense or with experts."""

    rope_mode = RopeMode.NORMAL
    ffn_scaled = True
    experts_scaled = True
    temperature: Temperature | None = None

    def read(self, file: GGUFFile) -> HParams:
        """With the magnitude that YaRN's logarithmic multiplier gives."""
        h = read_hparams(file)
        factor = h.keys.real("rope.scaling.yarn_log_multiplier", 0.0)
        if not factor:
            return h
        return h.replaced(lambda _, p: replace(p, rope=p.rope.with_log_multiplier(1.0, factor)))

    def set_up(self) -> None:
        """How q grows."""
        scale = self.hparams.keys.real("attention.temperature_scale", 0.0)
        if scale:
            self.temperature = Temperature(scale, self.hparams.layers[0].rope.n_ctx_orig)

    def mixer(self, i: int) -> SelfAttention:
        """With the temperature."""
        attention = SelfAttention.take(self.weights, i, self.hparams, self.layer_rope(i))
        return replace(attention, temperature=self.temperature)

    def is_dense(self, i: int) -> bool:
        """All layers have experts, or none."""
        return not self.hparams.n_expert

    def n_ff_expert(self, i: int) -> int:
        """Experts are of a dense block's size."""
        return self.hparams.layers[i].n_ff
