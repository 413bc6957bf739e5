"""Command R and its successors: both blocks in parallel behind one LayerNorm, scaled logits.

Command R (Cohere, 2024); the largest norms the heads of q and k, each with weights of its own.
Command R7B and Command A (2025) have windows in three layers of four, and no positions in the
others.
"""

from __future__ import annotations

from typing import ClassVar

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks import NormKind, Rope
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.layers import ParallelLayer
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class CommandR(PreNormDecoder):
    """A command-r model."""

    norms = "layer"
    qk_norm: ClassVar[NormKind | None] = "layer"
    rope_mode = RopeMode.NORMAL

    def set_up(self) -> None:
        """The scale of the logits; 0 means none."""
        self.logit_scale = self.hparams.keys.real("logit_scale", 0.0) or 1.0

    def layer(self, i: int) -> ParallelLayer:
        """With one norm."""
        return ParallelLayer(
            attn_norm=self.norm(i, "attn_norm"), mixer=self.mixer(i), ffn=self.ffn(i)
        )


class Cohere2(CommandR):
    """A cohere2 model."""

    qk_norm = None
    ffn_scaled = True

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        return h.with_windows(h.keys.windowed(4))

    def set_up(self) -> None:
        """The scale of the logits, which the file must have; 0 means none."""
        self.logit_scale = self.hparams.keys.real("logit_scale") or 1.0

    def layer_rope(self, i: int) -> Rope | None:
        """None in layers without a window."""
        return super().layer_rope(i) if self.hparams.layers[i].window is not None else None
