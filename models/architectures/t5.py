"""T5's encoder: RMSNorm, and attention with a learned bias for each bucket of distances.

Raffel et al., 2020. Feed-forward blocks have ReLU, in later versions a gate with GELU. Decoders
with cross-attention to an encoder are not supported.

Letters in shapes: E n_embd, D head size, H heads, F n_ff, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import attend
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.blocks.self_attention import SeparateQKV, heads
from ggmlpy.models.encoder import Encoder
from ggmlpy.models.hparams import LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import Buckets, KVSizes, LayerKV, LayerMemory


@dataclass(frozen=True, slots=True)
class RelativeAttention:
    """softmax(q k^T + bias of the distance's bucket) v, mapped back: without scale."""

    layer: int
    params: LayerParams
    qkv: SeparateQKV
    output: Linear  # [Dv*H, E]
    relative: Tensor  # [H, n_buckets]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        p = self.params
        sizes = KVSizes(p.n_embd_head_k, p.n_embd_head_v, p.n_head_kv)
        buckets = Buckets(self.relative.ne[1])
        return (LayerKV(self.layer, sizes, is_causal=False, buckets=buckets),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        p = self.params
        q, k, v = self.qkv(x)
        q, k, v = heads(q, p.n_head), heads(k, p.n_head_kv), heads(v, p.n_head_kv)
        out = attend(q, k, v, inputs, self.layer, 1.0, relative=self.relative)  # [Dv*H, T]
        return self.output(out).named("attn_out")


class T5Encoder(Encoder):
    """A t5encoder model."""

    output_norm_name = "enc.output_norm"

    def set_up(self) -> None:
        """The biases of the first layer, which others may share."""
        self.weights.without_effect("output.weight")  # of T5's decoder
        keys = self.hparams.keys
        self.n_buckets = keys.count("attention.relative_buckets_count")
        if self.n_buckets < 4 or self.n_buckets % 4:
            raise keys.error("attention.relative_buckets_count", self.n_buckets, "a multiple of 4")

    def layer(self, i: int) -> SequentialLayer:
        """Layer i."""
        h, weights, blk = self.hparams, self.weights, f"enc.blk.{i}"
        take = partial(Norm.take, weights, ne=h.n_embd, h=h)
        return SequentialLayer(
            attn_norm=take(f"{blk}.attn_norm", node="attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=take(f"{blk}.ffn_norm", node="ffn_norm"),
            ffn=self.ffn(i),
        )

    def mixer(self, i: int) -> RelativeAttention:
        """The attention of layer i, with the biases of the first layer if it has none."""
        h, blk, p = self.hparams, f"enc.blk.{i}", self.hparams.layers[i]
        take = partial(Linear.take, self.weights, scaled=False, biased=False)
        name = f"{blk}.attn_rel_b.weight"
        if not self.weights.has(name):
            name = "enc.blk.0.attn_rel_b.weight"
        return RelativeAttention(
            layer=i,
            params=p,
            qkv=SeparateQKV(
                take(f"{blk}.attn_q", h.n_embd, p.n_embd_q, node="Qcur"),
                take(f"{blk}.attn_k", h.n_embd, p.n_embd_k, node="Kcur"),
                take(f"{blk}.attn_v", h.n_embd, p.n_embd_v, node="Vcur"),
            ),
            output=take(f"{blk}.attn_o", p.n_embd_out, h.n_embd, node="kqv_wo"),
            relative=self.weights.take(name, p.n_head, self.n_buckets),
        )

    def ffn(self, i: int) -> FeedForward:
        """The feed-forward block of layer i."""
        E, F, blk = self.hparams.n_embd, self.hparams.layers[i].n_ff, f"enc.blk.{i}"
        take = partial(Linear.take, self.weights, scaled=False, biased=False)
        has_gate = self.weights.has(f"{blk}.ffn_gate.weight")
        return FeedForward(
            gate=take(f"{blk}.ffn_gate", E, F, node="ffn_gate") if has_gate else None,
            up=take(f"{blk}.ffn_up", E, F, node="ffn_up"),
            down=take(f"{blk}.ffn_down", F, E, node="ffn_down"),
            activation="gelu" if has_gate else "relu",
        )
