"""Latent attention over chosen cells: DeepSeek-V3.2 (2025), GLM-5 (2026), dots (2026).

An indexer scores all cells of a token and leaves the best `attention.indexer.top_k` of them to
attention. Up to that many cells it leaves all, and the result is that of full attention; longer
contexts are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.architectures.deepseek2 import DeepSeek2
from ggmlpy.models.blocks.experts import Gating
from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.hparams import HParams


class SparseLatent(DeepSeek2):
    """A deepseek32 model."""

    experts_scaled = True
    reads_temperature = False

    def set_up(self) -> None:
        """The longest context for which the indexer need not be asked."""
        super().set_up()
        keys = self.hparams.keys
        self.leave_indexer(keys.count("attention.indexer.top_k"))
        keys.without_effect("rope.dimension_sections")  # llama.cpp has no use for them


class GlmDsa(SparseLatent):
    """A glm-dsa model."""

    reads_multiplier = False
    default_gating: ClassVar[Gating] = "sigmoid"


class Dots3Note(SparseLatent):
    """A dots3note model: layers with a window have sizes of their own; heads are gated."""

    reads_multiplier = False

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = super().read(file)
        base = h.keys.positive("rope.freq_base_swa")
        return h.with_windows(h.keys.windowed(0), replace(h.layers[0].rope, freq_base=base))

    def mixer(self, i: int) -> Mixer:
        """Latent attention."""
        windowed = self.hparams.layers[i].window is not None
        return LatentAttention.take(
            self.weights,
            i,
            self.hparams,
            self.rope(i, self.rope_mode),
            suffix="_swa" if windowed else "",
        )
