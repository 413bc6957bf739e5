"""Mellum 2: experts as in Qwen3, and windows whose layers have no context scaling.

JetBrains, 2026.
"""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams


class Mellum(ExpertDecoder):
    """A mellum model."""

    qk_norm = "rms"
    experts_scaled = True

    def read(self, file: GGUFFile) -> HParams:
        """With windows, if the file names one."""
        h = read_hparams(file)
        return h.with_windows(h.keys.windowed(4), h.layers[0].rope.unscaled())
