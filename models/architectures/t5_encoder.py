"""T5's encoder: RMSNorm, and attention with a learned bias for each bucket of distances.

Raffel et al., 2020. Feed-forward blocks have ReLU, in later versions a gate with GELU.

Letters in shapes: E n_embd, D head size, H heads, F n_ff, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import Scores, attend
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.blocks.self_attention import SeparateQKV, heads
from ggmlpy.models.encoder import Encoder
from ggmlpy.models.hparams import HParams, LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.keys import Keys
from ggmlpy.models.memory import MAX_DISTANCE, Buckets, LayerKV, LayerMemory
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class RelativeAttention:
    """softmax(q k^T + bias of the distance's bucket) v, mapped back: without scale."""

    layer: int
    params: LayerParams
    qkv: SeparateQKV
    output: Linear  # [Dv*H, E]
    relative: Tensor  # [H, n_buckets]
    is_causal: bool

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        buckets = Buckets(self.relative.ne[1], self.is_causal)
        return (LayerKV(self.layer, self.params.kv, is_causal=self.is_causal, buckets=buckets),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        p = self.params
        q, k, v = self.qkv(x)
        q, k, v = heads(q, p.n_head), heads(k, p.n_head_kv), heads(v, p.n_head_kv)
        scores = Scores(1.0, relative=self.relative)
        out = attend(q, k, v, inputs, self.layer, scores)  # [Dv*H, T]
        return self.output(out).named("attn_out")


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of the layers `enc.blk.*` or `dec.blk.*`, by the number of the layer."""

    name: str  # "enc" or "dec"
    weights: Weights
    hparams: HParams
    n_buckets: int

    def norm(self, i: int, name: str, node: str | None = None) -> Norm:
        """The RMSNorm `name`."""
        h, full = self.hparams, f"{self.name}.blk.{i}.{name}"
        return Norm.take(self.weights, full, h.n_embd, h, node=node or name)

    def linear(self, i: int, name: str, n_in: int, n_out: int, node: str) -> Linear:
        """The map `name`, which has nothing but a weight."""
        full = f"{self.name}.blk.{i}.{name}"
        return Linear.take(self.weights, full, n_in, n_out, node=node, scaled=False, biased=False)

    def attention(self, i: int, *, is_causal: bool) -> RelativeAttention:
        """The attention among the tokens of the stack, with the biases of the first layer if this
        one has none."""
        h, p, linear = self.hparams, self.hparams.layers[i], partial(self.linear, i)
        name = f"{self.name}.blk.{i}.attn_rel_b.weight"
        if not self.weights.has(name):
            name = f"{self.name}.blk.0.attn_rel_b.weight"
        return RelativeAttention(
            layer=i,
            params=p,
            qkv=SeparateQKV(
                linear("attn_q", h.n_embd, p.n_embd_q, "Qcur"),
                linear("attn_k", h.n_embd, p.n_embd_k, "Kcur"),
                linear("attn_v", h.n_embd, p.n_embd_v, "Vcur"),
            ),
            output=linear("attn_o", p.n_embd_out, h.n_embd, "kqv_wo"),
            relative=self.weights.take(name, p.n_head, self.n_buckets),
            is_causal=is_causal,
        )

    def ffn(self, i: int) -> FeedForward:
        """The feed-forward block."""
        E, F, linear = self.hparams.n_embd, self.hparams.layers[i].n_ff, partial(self.linear, i)
        has_gate = self.weights.has(f"{self.name}.blk.{i}.ffn_gate.weight")
        return FeedForward(
            gate=linear("ffn_gate", E, F, "ffn_gate") if has_gate else None,
            up=linear("ffn_up", E, F, "ffn_up"),
            down=linear("ffn_down", F, E, "ffn_down"),
            activation="gelu" if has_gate else "relu",
        )


class T5Encoder(Encoder):
    """A t5encoder model."""

    output_norm_name = "enc.output_norm"

    def set_up(self) -> None:
        """What layers are made of."""
        self.weights.without_effect("output.weight")  # of T5's decoder
        self.stack = Stack("enc", self.weights, self.hparams, n_buckets(self.hparams.keys))

    def layer(self, i: int) -> SequentialLayer:
        """Layer i."""
        return SequentialLayer(
            attn_norm=self.stack.norm(i, "attn_norm"),
            mixer=self.stack.attention(i, is_causal=False),
            ffn_norm=self.stack.norm(i, "ffn_norm"),
            ffn=self.stack.ffn(i),
        )


def n_buckets(keys: Keys, *, is_causal: bool = False) -> int:
    """How many buckets distances have, of both signs unless `is_causal`."""
    n, key = keys.count("attention.relative_buckets_count"), "attention.relative_buckets_count"
    # Distances below `near` have a bucket each: fewer than there are distances.
    most = (2 if is_causal else 4) * (MAX_DISTANCE - 1) // 4 * 4
    if n < 4 or n % 4 or n > most:
        raise keys.error(key, n, f"a multiple of 4, at most {most}")
    return n
