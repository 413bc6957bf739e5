"""Gemma 4: gemma 3 with embeddings for every layer, shared K and V, and experts beside the dense
block. Google DeepMind, 2026.

Layers with full attention have larger heads and factors of their rotary frequencies. The last
layers read the K and V that earlier ones stored.

Letters in shapes: E n_embd, X experts, T tokens, O outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.experts import Experts, Router
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import Layer, output_rows
from ggmlpy.models.blocks.per_layer import PerLayerEmbedding, PerLayerInput
from ggmlpy.models.blocks.shared_kv import SharedKVAttention, kv_slot
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.ops.rope import RopeMode


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
        r = ops.scale(self.plain_norm(x), 1.0 / math.sqrt(x.ne[0])).named("ffn_moe_router_inp")
        r = ops.mul(r, self.router_scale).named("ffn_moe_router_scaled")
        logits = self.experts.router.linear(r)  # [X, T]
        selected, weights = self.experts.router.route(logits)
        routed = self.experts.combine(self.experts_norm(x), selected, weights)
        return ops.add(dense, self.experts_post_norm(routed)).named("ffn_moe_combined")


@dataclass(frozen=True, slots=True)
class Gemma4Layer:
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

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
        x = ops.add(self.attn_post_norm(h), x).named("attn_out_residual")
        normed = self.ffn_norm(x)
        h = self.ffn(normed, x) if isinstance(self.ffn, MixedFeedForward) else self.ffn(normed)
        x = ops.add(self.ffn_post_norm(h), x).named("pe_in")
        if self.per_layer is not None:
            own = self.per_layer(x, inputs, is_last=is_last)
            x = ops.add(x, own).named("per_layer_embd_out")
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
        self.n_embd_layer = P = h.keys.whole("embedding_length_per_layer_input", 0)
        self.per_layer = PerLayerEmbedding.take(self.weights, h, P) if P else None
        self.n_own = h.n_layer - h.keys.whole("attention.shared_kv_layers", 0)
        if self.n_own < min(2, h.n_layer):
            raise h.keys.error(
                "attention.shared_kv_layers", h.n_layer - self.n_own, f"at most {h.n_layer - 2}"
            )
        self.make_layers(self.layer)

    def layer(self, i: int) -> Layer:
        """Layer i."""
        h, weights, P = self.hparams, self.weights, self.n_embd_layer
        rope = Rope(h.layers[i].rope, RopeMode.NEOX)
        if h.layers[i].window is None:  # factors are for full attention
            rope = self.rope(i, rope.mode)
        return Gemma4Layer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=SharedKVAttention.take(weights, i, h, rope, kv_slot(h, i, self.n_own)),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self._ffn(i),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
            per_layer=PerLayerInput.take(weights, i, h, P) if P else None,
            scale=weights.maybe(f"blk.{i}.layer_output_scale.weight", 1),
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

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The embeddings of the tokens: [E, T]"""
        x = super().embed(inputs)
        if self.per_layer is not None:
            self.per_layer.hand_on(x, inputs)
        return x
