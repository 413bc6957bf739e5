"""ERNIE 4.5: llama with optional biases, dense or with experts. Baidu, 2025."""

from __future__ import annotations

from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Ernie45(PreNormDecoder):
    """A dense ernie4_5 model."""

    rope_mode = RopeMode.NORMAL
    output_bias = False

    def set_up(self) -> None:
        """As in llama.cpp sections of M-RoPE have no use."""
        self.hparams.keys.without_effect("rope.dimension_sections")


class Ernie45MoE(ExpertDecoder):
    """An ernie4_5-moe model: experts with a selection bias in every so many layers."""

    rope_mode = RopeMode.NORMAL
    output_bias = False

    def set_up(self) -> None:
        """Which layers have experts."""
        self.take_dense_layers()
        self.expert_step = self.hparams.keys.count("interleave_moe_layer_step")
        self.hparams.keys.without_effect("rope.dimension_sections")  # as in llama.cpp

    def is_dense(self, i: int) -> bool:
        """The first layers, and those between."""
        return super().is_dense(i) or (i + 1) % self.expert_step != 0

    def n_ff_shared(self, i: int) -> int:
        """As the file says."""
        return self.hparams.keys.whole("expert_shared_feed_forward_length", 0)


class PaddleOcr(PreNormDecoder):
    """A paddleocr model, without the inputs of images: ERNIE 4.5 with M-RoPE."""

    rope_mode = RopeMode.MROPE
