"""Falcon-H1: attention and Mamba-2 side by side in every layer; SwiGLU. TII, 2025."""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.blocks.state_space import Mamba2
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.pre_norm import PreNormDecoder


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The sum of attention and of a state-space layer."""

    attention: SelfAttention
    state_space: Mamba2

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """Of both."""
        return (*self.attention.memory, *self.state_space.memory)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        return ops.add(self.attention(x, inputs), self.state_space(x, inputs)).named("layer_out")


class FalconH1(PreNormDecoder):
    """A falcon-h1 model."""

    rope_factored = False
    output_bias = False

    def mixer(self, i: int) -> Mixer:
        """Attention beside Mamba-2."""
        h, weights = self.hparams, self.weights
        attention = SelfAttention.take(
            weights, i, h, self.layer_rope(i), output_bias=self.output_bias
        )
        return SideBySide(attention, Mamba2.take(weights, i, h))
