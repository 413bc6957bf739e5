"""What every decoder here has in common: embedding, layers one after the other, norm, logits.

An architecture's own file says what its layers are made of, and what it does otherwise.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.batch import UBatch
from ggmlpy.models.blocks import FeedForward, Linear, Norm, Rotation, SelfAttention
from ggmlpy.models.experts import Experts
from ggmlpy.models.hparams import HParams
from ggmlpy.models.memory import Memory
from ggmlpy.models.weights import Weights


class Mixer(Protocol):
    """What lets a token see others: attention, or what stands in its place."""

    def __call__(self, x: Tensor, ubatch: UBatch, /) -> Tensor:
        """x [E, T] -> [E, T]"""
        ...


class Layer(Protocol):
    """One layer of a decoder."""

    @property
    def mixer(self) -> Mixer: ...

    def __call__(self, x: Tensor, ubatch: UBatch, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T], of the last layer [E, O]: only wanted tokens matter after it."""
        ...


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """x + mixer(norm(x)), then x + ffn(norm(x)), as llama has it."""

    attn_norm: Norm  # [E], before the mixer whatever it is
    mixer: Mixer  # of most architectures SelfAttention
    ffn_norm: Norm  # [E]
    ffn: FeedForward | Experts

    def __call__(self, x: Tensor, ubatch: UBatch, *, is_last: bool) -> Tensor:
        h = self.mixer(self.attn_norm(x), ubatch)  # [E, T]
        if is_last:
            x, h = wanted(x, h, ubatch)  # [E, O]
        x = ops.add(x, h).named("ffn_inp")
        return ops.add(x, self.ffn(self.ffn_norm(x))).named("l_out")


def wanted(x: Tensor, h: Tensor, ubatch: UBatch) -> tuple[Tensor, Tensor]:
    """The columns of x and h [E, T] of the tokens whose logits are wanted: [E, O] each."""
    return (
        ops.get_rows(x, ubatch.out_ids).named("inpSA_outputs"),
        ops.get_rows(h, ubatch.out_ids).named("mixer_outputs"),
    )


class Decoder:
    """The graph of a model: `build(ubatch)` gives the logits [V, O].

    A subclass fills `memory` and `layers`, and may embed or end otherwise.
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

    def rotation_of(self, layer: int) -> Rotation:
        """How an attention layer turns q and k by their positions."""
        attention = self.layers[layer].mixer
        assert isinstance(attention, SelfAttention), f"layer {layer} has no attention"
        return attention.rotation

    def build(self, ubatch: UBatch) -> Tensor:
        """Logits [V, O] of the wanted tokens."""
        x = self.embed(ubatch.tokens)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(layer=i):
                x = layer(x, ubatch, is_last=i == len(self.layers) - 1)  # [E, T], at last [E, O]
        x = self.output_norm(x)  # [E, O]
        return self.logits(x).named("result_output")  # [V, O]

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [T] -> [E, T]"""
        return ops.get_rows(self.token_embd, tokens).named("inp_embd")

    def logits(self, x: Tensor) -> Tensor:
        """x [E, O], normed -> [V, O]"""
        return self.output(x)
