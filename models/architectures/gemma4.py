"""Gemma 4: gemma 3 with embeddings for every layer, shared K and V, and experts beside the dense
block. Google DeepMind, 2026.

Layers with full attention have larger heads and factors of their rotary frequencies. The last
layers read the K and V that earlier ones stored.

Letters in shapes: E n_embd, P size of a layer's own embedding, L layers, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.experts import Experts, Router
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import output_rows
from ggmlpy.models.blocks.shared_kv import SharedKVAttention, kv_slot
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


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

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T], scaled embeddings -> [P, L, T]"""
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
        return ops.scale(both, 1.0 / math.sqrt(2.0)).named("inp_per_layer")


def of_layer(per_layer: Tensor, layer: int) -> Tensor:
    """A layer's part of per_layer [P, L, T]: [P, T]"""
    P, _, T, _ = per_layer.ne
    part = ops.view_2d(per_layer, P, T, per_layer.nb[2], layer * per_layer.nb[1])
    return part.named("inp_this_layer")


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """norm(project(gelu(gate(x)) * the layer's embedding)) (Gemma 3n, 2025)."""

    gate: Linear  # [E, P]
    project: Linear  # [P, E]
    norm: Norm  # [E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams, P: int) -> PerLayerInput:
        """A layer's `inp_gate`, `proj` and `post_norm`."""
        blk, E = f"blk.{layer}", h.n_embd
        return cls(
            Linear.take(weights, f"{blk}.inp_gate", E, P, node="per_layer_inp_gate"),
            Linear.take(weights, f"{blk}.proj", P, E, node="per_layer_proj"),
            Norm.take(weights, f"{blk}.post_norm", E, h, node="per_layer_post_norm"),
        )

    def __call__(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x [E, T], embedding [P, T] -> [E, T]"""
        return self.norm(self.project(ops.mul(ops.gelu(self.gate(x)), embedding)))


@dataclass(frozen=True, slots=True)
class MixedFeedForward:
    """A dense block and experts side by side, each with norms of its own."""

    dense: FeedForward
    dense_post_norm: Norm  # [E]
    router_scale: Tensor  # [E]
    experts: Experts
    experts_norm: Norm  # [E]
    experts_post_norm: Norm  # [E]
    plain_norm: Norm

    def __call__(self, normed: Tensor, x: Tensor) -> Tensor:
        """normed [E, T] is what the dense block reads, x [E, T] the sum before: [E, T]"""
        dense = self.dense_post_norm(self.dense(normed))
        r = ops.scale(self.plain_norm(x), 1.0 / math.sqrt(x.ne[0]))
        logits = self.experts.router.linear(ops.mul(r, self.router_scale))  # [X, T]
        selected, weights = self.experts.router.route(logits)
        routed = self.experts.combine(self.experts_norm(x), selected, weights)
        return ops.add(dense, self.experts_post_norm(routed)).named("ffn_moe_combined")


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and feed-forward between norms, then the layer's own embedding, then a scale."""

    attn_norm: Norm
    mixer: SharedKVAttention
    attn_post_norm: Norm
    ffn_norm: Norm
    ffn: FeedForward | MixedFeedForward
    ffn_post_norm: Norm
    per_layer: PerLayerInput | None
    scale: Tensor | None  # [1]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(
        self, x: Tensor, inputs: GraphInputs, embedding: Tensor | None, *, is_last: bool
    ) -> Tensor:
        """x [E, T], embedding [P, T] -> [E, T]; in the last layer [E, O]"""
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
            if embedding is not None:
                embedding = ops.get_rows(ops.cont(embedding), inputs.out_ids)
        x = ops.add(self.attn_post_norm(h), x).named("attn_out_residual")
        normed = self.ffn_norm(x)
        h = self.ffn(normed, x) if isinstance(self.ffn, MixedFeedForward) else self.ffn(normed)
        x = ops.add(self.ffn_post_norm(h), x).named("pe_in")
        if self.per_layer is not None and embedding is not None:
            x = ops.add(x, self.per_layer(x, embedding)).named("per_layer_embd_out")
        if self.scale is not None:
            x = ops.mul(x, self.scale).named("out_scaled")
        return x.named("l_out")


class Gemma4(Decoder):
    """A gemma4 model."""

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        base = h.keys.positive("rope.freq_base_swa", 10_000.0)
        swa = h.layers[0].rope.unscaled(base)
        super().__init__(file, h.with_windows(h.keys.windowed(0), swa))
        h = self.hparams
        self.embedding_scale = math.sqrt(h.n_embd)
        self.softcap = h.keys.real("final_logit_softcapping", 30.0)
        P = h.keys.whole("embedding_length_per_layer_input", 0)
        self.per_layer = PerLayerEmbedding.take(self.weights, h, P) if P else None
        self.n_own = h.n_layer - h.keys.whole("attention.shared_kv_layers", 0)
        if self.n_own < min(2, h.n_layer):
            raise h.keys.error(
                "attention.shared_kv_layers", h.n_layer - self.n_own, f"at most {h.n_layer - 2}"
            )
        self._layers = [self._layer(i, P) for i in range(h.n_layer)]
        self.remember(self._layers)

    def _layer(self, i: int, P: int) -> Layer:
        h, weights, blk = self.hparams, self.weights, f"blk.{i}"
        rope = Rope(h.layers[i].rope, RopeMode.NEOX)
        if h.layers[i].window is None:  # factors are for full attention
            rope = self.rope(i, rope.mode)
        return Layer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=SharedKVAttention.take(weights, i, h, rope, kv_slot(h, i, self.n_own)),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self._ffn(i),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
            per_layer=PerLayerInput.take(weights, i, h, P) if P else None,
            scale=weights.maybe(f"{blk}.layer_output_scale.weight", 1),
        )

    def _ffn(self, i: int) -> FeedForward | MixedFeedForward:
        h, weights, blk = self.hparams, self.weights, f"blk.{i}"
        dense = FeedForward.take(weights, i, h, "gelu")
        if not weights.has(f"{blk}.ffn_gate_inp.weight"):
            return dense
        linear = Linear.take(
            weights,
            f"{blk}.ffn_gate_inp",
            h.n_embd,
            h.n_expert,
            node="ffn_moe_logits",
            scaled=False,
        )
        router = Router(linear, h.n_expert_used, "softmax")
        return MixedFeedForward(
            dense=dense,
            dense_post_norm=self.norm(i, "post_ffw_norm_1"),
            router_scale=weights.take(f"{blk}.ffn_gate_inp.scale", h.n_embd),
            experts=Experts.take(weights, i, h, router, activation="gelu"),
            experts_norm=self.norm(i, "pre_ffw_norm_2"),
            experts_post_norm=self.norm(i, "post_ffw_norm_2"),
            plain_norm=Norm.plain("ffn_moe_router_norm", h),
        )

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output: [E, O]"""
        x = self.embed(inputs)  # [E, T]
        per_layer = None if self.per_layer is None else self.per_layer(x, inputs)  # [P, L, T]
        for i, layer in enumerate(self._layers):
            with scope(layer=i):
                own = None if per_layer is None else of_layer(per_layer, i)  # [P, T]
                x = layer(x, inputs, own, is_last=i == len(self._layers) - 1)
        return x
