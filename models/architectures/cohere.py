"""Command R and its successors: both blocks in parallel behind one LayerNorm, scaled logits.

Command R (Cohere, 2024); the largest norms the heads of q and k, each with weights of its own.
Command R7B and Command A (2025) have windows in three layers of four, and no positions in the
others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import NormKind, Rope
from ggmlpy.models.blocks.experts import Experts
from ggmlpy.models.blocks.layers import ParallelLayer, PerToken
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
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


@dataclass(frozen=True, slots=True)
class Halved:
    """Half the sum of selected and shared experts."""

    experts: Experts

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        return ops.scale(self.experts(x), 0.5).named("ffn_out_halved")


class Cohere2MoE(SharedExpertDecoder):
    """A cohere2moe model: windows as in cohere2, dense layers, then experts (2026). Its norms are
    those whose epsilon the file has."""

    rope_mode = RopeMode.NORMAL
    gating = "sigmoid"
    gating_from_file = True
    experts_scaled = True
    ffn_scaled = True
    ffn_biased = False
    output_biased = False

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        if h.keys.real("attention.layer_norm_rms_epsilon", 0.0) == 0.0:
            self.norms = "layer"
        return h.with_windows(h.keys.windowed(4, full_first=True))

    def set_up(self) -> None:
        """The scale of the logits; 0 means none."""
        super().set_up()
        self.logit_scale = self.hparams.keys.real("logit_scale") or 1.0

    def layer(self, i: int) -> ParallelLayer:
        """With one norm."""
        return ParallelLayer(
            attn_norm=self.norm(i, "attn_norm"), mixer=self.mixer(i), ffn=self.ffn(i)
        )

    def layer_rope(self, i: int) -> Rope | None:
        """None in layers without a window, but for the dense ones."""
        windowed = self.hparams.layers[i].window is not None
        return super().layer_rope(i) if windowed or self.is_dense(i) else None

    def ffn(self, i: int) -> PerToken:
        """Halved where there are shared experts."""
        if self.is_dense(i):
            return super().ffn(i)
        experts = self.experts(i)
        return experts if experts.shared is None else Halved(experts)

    def n_ff_shared(self, i: int) -> int:
        """As the file says, or as many experts as it says."""
        keys, shared = self.hparams.keys, super().n_ff_shared(i)
        own = keys.whole("expert_shared_feed_forward_length", 0)
        return own or shared if shared else 0
