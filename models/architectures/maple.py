"""Maple: experts with a clamped SwiGLU; windows with positions, and full attention without.

As in llama.cpp, 2026.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.expert_decoder import MIN_LIMIT, ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams


class Maple(ExpertDecoder):
    """A maple model."""

    qk_norm = "rms"
    output_bias = False
    limit_first = True

    def read(self, file: GGUFFile) -> HParams:
        """With windows in the layers that the file says."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        return h.with_windows(h.keys.windowed(0), replace(rope, freq_base=base))

    def layer_rope(self, i: int) -> Rope | None:
        """None in layers without a window."""
        return super().layer_rope(i) if self.hparams.layers[i].window is not None else None

    def expert_limit(self, i: int) -> float:
        """As the file says."""
        limit = self.hparams.keys.reals("swiglu_clamp_exp", 0.0)[i]
        return limit if limit > MIN_LIMIT else 0.0
