"""Llama 4: experts in some layers with one that all tokens share, attention in chunks. Meta, 2025.

Three layers of four attend within chunks of 8192 tokens, and norm q and k after they are rotated.
The fourth attends to all tokens, has no positions, and scales q with the position.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.errors import Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm, Rope
from ggmlpy.models.blocks.experts import Experts, take_router
from ggmlpy.models.blocks.self_attention import SelfAttention, Temperature
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.memory import Window
from ggmlpy.ops.rope import RopeMode

N_CHUNK = 8192
NO_ROPE_STEP = 4  # every so many layers have no positions
N_EXPERT_MAVERICK = 128  # whose q and k are not normed
TEMPERATURE = Temperature(0.1, N_CHUNK, 1.0)
FIXED = {
    "attention.chunk_size": N_CHUNK,
    "attention.temperature_scale": TEMPERATURE.scale,
}


class Llama4(ExpertDecoder):
    """A llama4 model."""

    rope_mode = RopeMode.NORMAL
    ffn_biased = False

    def read(self, file: GGUFFile) -> HParams:
        """With chunks. Raises Unsupported for a file that has none."""
        h = read_hparams(file)
        keys = h.keys
        if not keys.whole("attention.sliding_window", N_CHUNK):
            raise Unsupported(f"{keys.file}: llama4 without chunked attention is not supported")
        base = keys.positive("rope.freq_base_swa", h.layers[0].rope.freq_base)
        window, flags = Window(N_CHUNK, "chunked"), keys.windowed(4)
        return h.replaced(
            lambda i, p: (
                replace(p, window=window, rope=replace(p.rope, freq_base=base)) if flags[i] else p
            )
        )

    def set_up(self) -> None:
        """Which layers have experts."""
        for key, value in FIXED.items():
            self.hparams.keys.fixed(key, value)
        self.expert_step = self.hparams.keys.whole("interleave_moe_layer_step", 0)

    def layer_rope(self, i: int) -> Rope | None:
        """None in every fourth layer."""
        return super().layer_rope(i) if (i + 1) % NO_ROPE_STEP else None

    def mixer(self, i: int) -> SelfAttention:
        """Normed after the rotation, or scaled with the position."""
        h = self.hparams
        attention = SelfAttention.take(self.weights, i, h, self.layer_rope(i), output_bias=False)
        if attention.rope is None:
            return replace(attention, temperature=TEMPERATURE)
        if h.n_expert == N_EXPERT_MAVERICK:
            return attention
        q_norm, k_norm = Norm.plain("Qcur_normed", h), Norm.plain("Kcur_normed", h)
        return replace(attention, q_norm=q_norm, k_norm=k_norm, norm_last=True)

    def is_dense(self, i: int) -> bool:
        """Experts are in every so many layers."""
        return not self.expert_step or (i + 1) % self.expert_step != 0

    def experts(self, i: int) -> Experts:
        """Selected by logits; their weights multiply what goes in."""
        h, weights = self.hparams, self.weights
        router = take_router(
            weights, i, h, gating="sigmoid", normalise=False, select_by_logits=True
        )
        n_ff = self.n_ff_expert(i)
        return Experts.take(
            weights, i, h, router, n_ff=n_ff, n_ff_shared=n_ff, weight_before=True, scaled=False
        )
