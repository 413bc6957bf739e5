"""What a layer of a decoder does with its parts: in sequence, or in parallel.

Letters in shapes: E n_embd, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory


class HasMemory(Protocol):
    """A layer, or a part of one, that keeps something of past tokens."""

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """What it keeps."""
        ...


class Mixer(HasMemory, Protocol):
    """The part of a layer that combines tokens, such as attention or a convolution."""

    def __call__(self, x: Tensor, inputs: GraphInputs, /) -> Tensor:
        """x [E, T] -> [E, T]"""
        ...


class PerToken(Protocol):
    """The part of a layer that treats each token alone: feed-forward or experts."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """x [E, T] -> [E, T]"""
        ...


class Layer(HasMemory, Protocol):
    """One layer of a decoder."""

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T]; in the last layer [E, O], only the tokens that are output."""
        ...


@dataclass(frozen=True, slots=True)
class SequentialLayer:
    """x + mixer(norm(x)), then x + ffn(norm(x)): llama with both norms before, gemma 2 with norms
    before and after, olmo 2 with norms after only. What is None is left out."""

    mixer: Mixer
    ffn: PerToken | None
    attn_norm: Norm | None = None  # before the mixer, also where it is no attention
    attn_post_norm: Norm | None = None  # of the mixer's result
    ffn_norm: Norm | None = None
    ffn_post_norm: Norm | None = None
    residual_scale: float = 1.0  # of both results before they are added
    sum_node: str = "ffn_inp"  # name of the sum after the mixer

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        h = self.mixer(x if self.attn_norm is None else self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
        x = self._added(x, h, self.attn_post_norm, "attn")
        x = x.named(self.sum_node if self.ffn else "l_out")
        if self.ffn is None:
            return x
        h = self.ffn(x if self.ffn_norm is None else self.ffn_norm(x))
        return self._added(x, h, self.ffn_post_norm, "ffn").named("l_out")

    def _added(self, x: Tensor, h: Tensor, norm: Norm | None, part: str) -> Tensor:
        if norm is not None:
            h = norm(h)
        if self.residual_scale != 1.0:
            h = ops.scale(h, self.residual_scale).named(f"{part}_residual")
        # With the norm's result first, norm, sum and the next norm are one step.
        return ops.add(x, h) if norm is None else ops.add(h, x)


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """x + mixer(norm(x)) + ffn(norm(x)), with one norm or two, as GPT-J and PaLM have it."""

    attn_norm: Norm
    mixer: Mixer
    ffn: PerToken
    ffn_norm: Norm | None = None  # None: the feed-forward reads what the mixer reads

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        normed = self.attn_norm(x)  # [E, T]
        h = self.mixer(normed, inputs)  # [E, T]
        if self.ffn_norm is not None:
            normed = self.ffn_norm(x)
        if is_last:
            x, h, normed = output_rows(inputs, x, h, normed)  # [E, O]
        h = ops.add(self.ffn(normed), h).named("ffn_attn_out")
        return ops.add(h, x).named("l_out")


def output_rows(inputs: GraphInputs, *parts: Tensor) -> tuple[Tensor, ...]:
    """The columns of each part [E, T] of the tokens that are output: [E, O] each."""
    return tuple(ops.get_rows(x, inputs.out_ids).named(f"{x.name}_outputs") for x in parts)
