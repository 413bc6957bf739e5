"""Granite: llama whose embeddings, residuals, attention and logits are scaled. IBM, 2024.

With experts, which may have a shared one; with windows and sinks, and without positions in some
layers (2026).
"""

from __future__ import annotations

from typing import ClassVar

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.layers import Layer, SequentialLayer
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.ops.rope import RopeMode


class Granite(ExpertDecoder):
    """A granite model."""

    rope_mode = RopeMode.NORMAL
    residual_scale = 1.0
    default_logit_scale: ClassVar[float | None] = None  # None: the file must say

    def set_up(self) -> None:
        """The scales of the file, where 0 stands for 1."""
        keys = self.hparams.keys
        self.embedding_scale = keys.real("embedding_scale", 0.0) or 1.0
        self.residual_scale = keys.real("residual_scale", 0.0) or 1.0
        self.attn_scale = keys.real("attention.scale", 0.0) or None
        self.logit_scale = 1.0 / (keys.real("logit_scale", self.default_logit_scale) or 1.0)

    def layer(self, i: int) -> Layer:
        """With scaled residuals."""
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            residual_scale=self.residual_scale,
        )

    def layer_rope(self, i: int) -> Rope | None:
        """None where `rope.scaling.finetuned` says that the model has no positions."""
        finetuned = self.hparams.keys.flag("rope.scaling.finetuned", True)
        return super().layer_rope(i) if finetuned else None

    def is_dense(self, i: int) -> bool:
        """A layer has experts if it has a router."""
        return not self.weights.has(f"blk.{i}.ffn_gate_inp.weight")

    def n_ff_expert(self, i: int) -> int:
        """Experts are of a dense block's size."""
        return self.hparams.layers[i].n_ff

    def n_ff_shared(self, i: int) -> int:
        """As the file says."""
        return self.hparams.keys.whole("expert_shared_feed_forward_length", 0)


class GraniteMoE(Granite):
    """A granitemoe model."""

    def layer_rope(self, i: int) -> Rope | None:
        """Whatever the file says of fine-tuning."""
        return self.rope(i, self.rope_mode)


class GraniteSWA(Granite):
    """A granite_swa model."""

    def read(self, file: GGUFFile) -> HParams:
        """With windows in the layers that the file says."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        return h.with_windows(h.keys.windowed(0))

    def layer_rope(self, i: int) -> Rope | None:
        """Where `attention.rope_pattern` is not 0."""
        rotated = self.hparams.keys.per_layer("attention.rope_pattern", 1)[i]
        return self.rope(i, self.rope_mode) if rotated else None
