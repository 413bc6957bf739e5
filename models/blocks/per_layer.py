"""Embeddings of tokens for each layer (Gemma 3n, Gemma 4): Google DeepMind, 2025.

Letters in shapes: E n_embd, P size of a layer's own embedding, L layers, V n_vocab, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.weights import Weights

_PER_LAYER = "embeddings of all layers"


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """A small embedding of each token for each layer, plus a projection of its main embedding."""

    tokens: Tensor  # [P*L, V]
    projection: Tensor  # [E, P*L]
    norm: Norm  # [P]

    @classmethod
    def take(cls, weights: Weights, h: HParams, P: int) -> PerLayerEmbedding:
        """The file's `per_layer_*` tensors, P elements for each layer."""
        n = P * h.n_layer
        return cls(
            weights.take("per_layer_token_embd.weight", n, h.n_vocab),
            weights.take("per_layer_model_proj.weight", h.n_embd, n),
            Norm.take(weights, "per_layer_proj_norm", P, h),
        )

    def hand_on(self, x: Tensor, inputs: GraphInputs) -> None:
        """Make the embeddings [P, L, T], of x [E, T], the scaled main ones, for
        `PerLayerInput`."""
        assert self.norm.weight is not None
        P = self.norm.weight.ne[0]
        L, T = self.tokens.ne[0] // P, x.ne[1]
        own = ops.get_rows(self.tokens, inputs.tokens).named("inp_per_layer_selected")
        own = ops.scale(ops.reshape_3d(own, P, L, T), math.sqrt(P))  # [P, L, T]
        projected = ops.mul_mat(self.projection, x).named("inp_per_layer_proj")  # [P*L, T]
        projected = ops.scale(projected, 1.0 / math.sqrt(x.ne[0])).named(
            "inp_per_layer_proj_scaled"
        )
        projected = self.norm(ops.reshape_3d(projected, P, L, T))
        both = ops.add(projected, own.named("inp_per_layer_scaled")).named("inp_per_layer_sum")
        inputs.handed_on[_PER_LAYER] = ops.scale(both, 1.0 / math.sqrt(2.0)).named("inp_per_layer")


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """norm(project(gelu(gate(x)) * the layer's embedding))."""

    layer: int
    gate: Linear  # [E, P]
    project: Linear  # [P, E]
    norm: Norm  # [E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams, P: int) -> PerLayerInput:
        """A layer's `inp_gate`, `proj` and `post_norm`."""
        blk, E = f"blk.{layer}", h.n_embd
        return cls(
            layer,
            Linear.take(weights, f"{blk}.inp_gate", E, P, node="per_layer_inp_gate"),
            Linear.take(weights, f"{blk}.proj", P, E, node="per_layer_proj"),
            Norm.take(weights, f"{blk}.post_norm", E, h, node="per_layer_post_norm"),
        )

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T]; in the last layer x has only the tokens that are output"""
        all_layers = inputs.handed_on[_PER_LAYER]  # [P, L, T]
        P, _, T, _ = all_layers.ne
        own = ops.view_2d(all_layers, P, T, all_layers.nb[2], self.layer * all_layers.nb[1])
        own = own.named("inp_this_layer")  # [P, T]
        if is_last:
            own = ops.cont(own).named("inp_this_layer_cont")
            own = ops.get_rows(own, inputs.out_ids).named("inp_this_layer_outputs")  # [P, O]
        gated = ops.gelu(self.gate(x)).named("per_layer_inp_gelu")  # [P, T]
        return self.norm(self.project(ops.mul(gated, own).named("per_layer_inp")))
