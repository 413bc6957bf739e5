"""MiMo-V2-Flash: windows of few tokens with sinks, heads of other sizes for K and V, experts.

Xiaomi, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory


@dataclass(frozen=True, slots=True)
class ScaledAttention:
    """Attention whose result is scaled."""

    attention: SelfAttention
    scale: float

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.attention.memory

    @property
    def rope(self) -> Rope | None:
        return self.attention.rope

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        return ops.scale(self.attention(x, inputs), self.scale).named("attn_out_scaled")


class Mimo2(ExpertDecoder):
    """A mimo2 model."""

    gating = "sigmoid"
    ffn_biased = False
    output_bias = False

    def read(self, file: GGUFFile) -> HParams:
        """With windows in the layers that the file says, without context scaling."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", 10_000.0)
        windowed = h.keys.windowed(0)
        return h.with_windows(windowed, replace(rope, freq_base=base, freq_scale=1.0))

    def set_up(self) -> None:
        """Gating is a sigmoid, as all files say."""
        self.hparams.keys.without_effect("expert_gating_func")

    def mixer(self, i: int) -> Mixer:
        """Scaled by `attention.value_scale`, if the file has it.

        As in llama.cpp, biases of q, k and v are left unused.
        """
        h = self.hparams
        attention = SelfAttention.take(
            self.weights, i, h, self.layer_rope(i), output_bias=False, qkv_plain=True
        )
        scale = h.keys.real("attention.value_scale", 0.0) or 1.0
        return attention if scale == 1.0 else ScaledAttention(attention, scale)

    def is_dense(self, i: int) -> bool:
        """A layer has experts if it has a router."""
        return not self.weights.has(f"blk.{i}.ffn_gate_inp.weight")
