"""Grok 1 and 2: GeGLU experts, some beside a dense block; soft-capped scores; norms before and
after every block. xAI, 2024 and 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.experts import Experts
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import Layer, PerToken, SequentialLayer
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams


@dataclass(frozen=True, slots=True)
class DenseAndExperts:
    """The sum of a dense block and experts, over sqrt(2)."""

    dense: FeedForward
    experts: Experts

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        both = ops.add(self.dense(x), self.experts(x)).named("ffn_both")
        return ops.scale(both, math.sqrt(2.0) / 2.0).named("ffn_out_scaled")


class Grok(ExpertDecoder):
    """A grok model. What the file does not say is as in Grok 1."""

    activation = "gelu"
    expert_activation = "gelu"

    def read(self, file: GGUFFile) -> HParams:
        """With the file's own keys of YaRN."""
        h = read_hparams(file)
        keys, rope = h.keys, h.layers[0].rope
        own = keys.signed("rope.scaling.yarn_ext_factor", -1.0)
        ext = own if own >= 0.0 else rope.ext_factor
        attn = rope.attn_factor
        if not ext:  # else YaRN has a factor of its own
            attn *= keys.positive("rope.scaling.yarn_attn_factor", 1.0)
        fast = keys.positive("rope.scaling.yarn_beta_fast", 8.0)
        changed = replace(rope, ext_factor=ext, attn_factor=attn, beta_fast=fast)
        return h.replaced(lambda _, p: replace(p, rope=changed))

    def set_up(self) -> None:
        """Scales and soft-caps."""
        keys = self.hparams.keys
        for key in ("attention.temperature_length", "router_logit_softcapping"):
            keys.without_effect(key)  # llama.cpp has no use for them
        self.embedding_scale = keys.real("embedding_scale", 78.38367176906169) or 1.0
        self.attn_scale = keys.real("attention.output_scale", 0.08838834764831845)
        self.attn_softcap = keys.positive("attn_logit_softcapping", 30.0)
        self.logit_scale = keys.real("logit_scale", 0.5773502691896257)
        self.softcap = keys.real("final_logit_softcapping", 0.0)

    def layer(self, i: int) -> Layer:
        """With norms of inputs and of results."""
        last = "layer_output_norm"  # in files of Grok 1
        if not self.weights.has(f"blk.{i}.{last}.weight"):
            last = "post_ffw_norm"
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            attn_post_norm=self.norm(i, "attn_output_norm", node="attn_out_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=self.norm(i, last, node="layer_out_norm"),
        )

    def ffn(self, i: int) -> PerToken:
        """Experts, and a dense block where the file has one."""
        if not self.weights.has(f"blk.{i}.ffn_up.weight"):
            return self.experts(i)
        dense = FeedForward.take(self.weights, i, self.hparams, self.activation, scaled=False)
        return DenseAndExperts(dense, self.experts(i))

    def n_ff_expert(self, i: int) -> int:
        """As the file says, or a dense block's size."""
        h = self.hparams
        return h.keys.per_layer("expert_feed_forward_length", 0)[i] or h.layers[i].n_ff
