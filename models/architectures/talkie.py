"""Talkie: norms without weights, and the normed embeddings added again after every layer. 2026.

The heads of q and k are normed after they are rotated; each head of q has one scale.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import SequentialLayer, output_rows
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.pre_norm import PreNormDecoder


class Talkie(PreNormDecoder):
    """A talkie model."""

    output_norm_name = None

    def set_up(self) -> None:
        """The scale of the logits, the norm of embeddings, and a scale of them for each layer."""
        h = self.hparams
        self.logit_scale = h.keys.real("logit_scale")
        self.embd_norm = Norm.plain("inp_norm", h)
        names = [f"blk.{i}.layer_output_scale.weight" for i in range(h.n_layer)]
        self.skip_scales = [self.weights.take(name, 1) for name in names]

    def layer(self, i: int) -> SequentialLayer:
        """With norms that have no weights."""
        h = self.hparams
        return SequentialLayer(
            attn_norm=Norm.plain("attn_norm", h),
            mixer=self.mixer(i),
            ffn_norm=Norm.plain("ffn_norm", h),
            ffn=self.ffn(i),
        )

    def mixer(self, i: int) -> SelfAttention:
        """With norms of heads."""
        h = self.hparams
        scales = self.weights.take(f"blk.{i}.attn_q_norm.weight", 1, h.layers[i].n_head)
        return replace(
            SelfAttention.take(self.weights, i, h, self.layer_rope(i), norm_last=True),
            q_norm=replace(Norm.plain("Qcur_normed", h), weight=scales),
            k_norm=Norm.plain("Kcur_normed", h),
        )

    def ffn(self, i: int) -> FeedForward:
        """As in llama.cpp only the map back has a scale."""
        h, weights = self.hparams, self.weights
        down = Linear.take(weights, f"blk.{i}.ffn_down", h.layers[i].n_ff, h.n_embd)
        return replace(FeedForward.take(weights, i, h, scaled=False), down=down)

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output: [E, O]"""
        x = embedding = self.embed(inputs)  # [E, T]
        for i, (layer, skip_scale) in enumerate(zip(self.layers, self.skip_scales, strict=True)):
            is_last = i == len(self.layers) - 1
            with scope(layer=i):
                x = layer(x, inputs, is_last=is_last)  # [E, T], in the end [E, O]
                if is_last:
                    (embedding,) = output_rows(inputs, embedding)  # [E, O]
                x = ops.add(x, ops.mul(embedding, skip_scale).named("embd_skip"))
                x = x.named("l_out_skip")
        return x
