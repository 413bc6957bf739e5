"""The part that all decoders share: embedding, layers in sequence, norm, logits.

An architecture's own file defines its layers, and what it does differently.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks import FeedForward, Linear, Norm, Rope, SelfAttention
from ggmlpy.models.experts import Experts
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import Memory
from ggmlpy.models.weights import Weights


class Mixer(Protocol):
    """The part of a layer that combines tokens, such as attention or a convolution."""

    def __call__(self, x: Tensor, inputs: GraphInputs, /) -> Tensor:
        """x [E, T] -> [E, T]"""
        ...


class Layer(Protocol):
    """One layer of a decoder."""

    @property
    def mixer(self) -> Mixer: ...

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T]; in the last layer [E, O], only the tokens that are output."""
        ...


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """x + mixer(norm(x)), then x + ffn(norm(x)), as llama has it."""

    attn_norm: Norm  # [E], also where the mixer is no attention
    mixer: Mixer
    ffn_norm: Norm  # [E]
    ffn: FeedForward | Experts

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(x, h, inputs)  # [E, O]
        x = ops.add(x, h).named("ffn_inp")
        return ops.add(x, self.ffn(self.ffn_norm(x))).named("l_out")


def output_rows(x: Tensor, h: Tensor, inputs: GraphInputs) -> tuple[Tensor, Tensor]:
    """The columns of x and h [E, T] of the tokens that are output: [E, O] each."""
    return (
        ops.get_rows(x, inputs.out_ids).named("inpSA_outputs"),
        ops.get_rows(h, inputs.out_ids).named("mixer_outputs"),
    )


class Decoder:
    """The graph of a model: `build(inputs)` gives the logits [V, O].

    A subclass sets `memory` and `layers`, and may override `embed` and `logits`.
    """

    memory: Memory
    layers: Sequence[Layer]

    def __init__(
        self, file: GGUFFile, hparams: HParams, *, output_norm: str = "output_norm"
    ) -> None:
        self.hparams = h = hparams
        self.weights = Weights(file)
        self.token_embd = self.weights.take("token_embd.weight", h.n_embd, h.n_vocab)
        self.output_norm = Norm.take(self.weights, output_norm, h.n_embd, h, node="result_norm")
        self.output = Linear.take_output(self.weights, h)

    def rope_of(self, layer: int) -> Rope:
        """The rotary embedding of an attention layer."""
        attention = self.layers[layer].mixer
        assert isinstance(attention, SelfAttention), f"layer {layer} has no attention"
        return attention.rope

    def build(self, inputs: GraphInputs) -> Tensor:
        """Logits [V, O] of the tokens that are output."""
        x = self.embed(inputs.tokens)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(layer=i):
                x = layer(x, inputs, is_last=i == len(self.layers) - 1)  # [E, T], in the end [E, O]
        x = self.output_norm(x)  # [E, O]
        return self.logits(x).named("result_output")  # [V, O]

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [T] -> [E, T]"""
        return ops.get_rows(self.token_embd, tokens).named("inp_embd")

    def logits(self, x: Tensor) -> Tensor:
        """x [E, O], normed -> [V, O]"""
        return self.output(x)
