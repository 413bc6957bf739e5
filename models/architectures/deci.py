"""Deci: llama found by architecture search (Bercovich et al., 2024): Llama Nemotron.

A layer may have attention with its own number of K/V heads, one linear map in its place, or
nothing; its feed-forward block may have its own size, or be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.layers import Mixer, PerToken, output_rows
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class LinearMixer:
    """One linear map in place of attention."""

    linear: Linear  # [E, E]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """Nothing."""
        return ()

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        return self.linear(x)


@dataclass(frozen=True, slots=True)
class DeciLayer:
    """Attention and feed-forward, each with its norm, where the layer has them."""

    attn_norm: Norm | None
    mixer: Mixer | None
    ffn_norm: Norm | None
    ffn: PerToken | None

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """That of the attention."""
        return () if self.mixer is None else self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        if self.attn_norm is not None and self.mixer is not None:
            h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
            if is_last:
                x, h = output_rows(inputs, x, h)  # [E, O]
            x = ops.add(x, h).named("ffn_inp")
        elif is_last:
            (x,) = output_rows(inputs, x)
        if self.ffn_norm is not None and self.ffn is not None:
            x = ops.add(x, self.ffn(self.ffn_norm(x))).named("l_out")
        return x


class Deci(PreNormDecoder):
    """A deci model."""

    rope_mode = RopeMode.NORMAL

    def layer(self, i: int) -> DeciLayer:
        """Layer i."""
        p, weights, E = self.hparams.layers[i], self.weights, self.hparams.n_embd
        mixer: Mixer | None = None
        if p.n_head_kv:
            mixer = self.mixer(i)
        elif p.n_head:
            name = f"blk.{i}.attn_output"
            mixer = LinearMixer(
                Linear.take(weights, name, E, E, node="attn_out", scaled=False, biased=False)
            )
        return DeciLayer(
            attn_norm=self.norm(i, "attn_norm") if mixer is not None else None,
            mixer=mixer,
            ffn_norm=self.norm(i, "ffn_norm") if p.n_ff else None,
            ffn=self.ffn(i) if p.n_ff else None,
        )
