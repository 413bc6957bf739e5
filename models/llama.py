"""Llama: RMSNorm, rotary attention with grouped K/V heads, SwiGLU or a mixture of such experts.

Also Mistral, Mixtral and whatever else says `llama` in its file. Touvron et al., 2023; experts as
in Jiang et al., 2024.

Letters in shapes: E n_embd, D head size, H heads, Hk K/V heads, F n_ff, V n_vocab, X experts,
U experts used, T tokens, O outputs wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.models.attention import attend
from ggmlpy.models.batch import UBatch
from ggmlpy.models.experts import Experts, mixture
from ggmlpy.models.hparams import HParams, attention_layers, read_hparams
from ggmlpy.models.memory import Memory
from ggmlpy.models.weights import Weights
from ggmlpy.tensor import Tensor, scope

ROPE_NORMAL = 0  # rotates the pairs (2i, 2i + 1)


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Tensor  # [E]
    attn_q: Tensor  # [E, D*H]
    attn_k: Tensor  # [E, D*Hk]
    attn_v: Tensor  # [E, Dv*Hk]
    attn_output: Tensor  # [Dv*H, E]
    attn_q_bias: Tensor | None
    attn_k_bias: Tensor | None
    attn_v_bias: Tensor | None
    attn_output_bias: Tensor | None
    rope_freqs: Tensor | None  # [n_rot/2] frequency factors
    ffn_norm: Tensor  # [E]
    ffn: FeedForward | Experts


@dataclass(frozen=True, slots=True)
class FeedForward:
    gate: Tensor  # [E, F]
    up: Tensor  # [E, F]
    down: Tensor  # [F, E]


class Llama:
    """The graph of a llama-family model: `build(ubatch)` gives the logits [V, O]."""

    def __init__(self, file: GGUFFile) -> None:
        self.hparams = read_hparams(file)
        self.weights = Weights(file)
        h, take = self.hparams, self.weights.take
        self.token_embd = take("token_embd.weight", h.n_embd, h.n_vocab)
        self.layers = [self._layer(f"blk.{i}") for i in range(h.n_layer)]
        self.output_norm = take("output_norm.weight", h.n_embd)
        tied = self.token_embd
        self.memory: Memory = (attention_layers(self.hparams),)
        self.output = self.weights.maybe("output.weight", h.n_embd, h.n_vocab) or tied

    def _layer(self, blk: str) -> Layer:
        h, take, maybe = self.hparams, self.weights.take, self.weights.maybe
        E, H, Hk = h.n_embd, h.n_head, h.n_head_kv
        Dk, Dv = h.n_embd_head_k, h.n_embd_head_v
        n_rot = h.rope.n_dims
        return Layer(
            attn_norm=take(f"{blk}.attn_norm.weight", E),
            attn_q=take(f"{blk}.attn_q.weight", E, Dk * H),
            attn_k=take(f"{blk}.attn_k.weight", E, Dk * Hk),
            attn_v=take(f"{blk}.attn_v.weight", E, Dv * Hk),
            attn_output=take(f"{blk}.attn_output.weight", Dv * H, E),
            attn_q_bias=maybe(f"{blk}.attn_q.bias", Dk * H),
            attn_k_bias=maybe(f"{blk}.attn_k.bias", Dk * Hk),
            attn_v_bias=maybe(f"{blk}.attn_v.bias", Dv * Hk),
            attn_output_bias=maybe(f"{blk}.attn_output.bias", E),
            rope_freqs=maybe("rope_freqs.weight", n_rot // 2),
            ffn_norm=take(f"{blk}.ffn_norm.weight", E),
            ffn=Experts.take(self.weights, blk, h) if h.n_expert else self._feed_forward(blk),
        )

    def _feed_forward(self, blk: str) -> FeedForward:
        E, F = self.hparams.n_embd, self.hparams.n_ff
        take = self.weights.take
        return FeedForward(
            gate=take(f"{blk}.ffn_gate.weight", E, F),
            up=take(f"{blk}.ffn_up.weight", E, F),
            down=take(f"{blk}.ffn_down.weight", F, E),
        )

    def build(self, ubatch: UBatch) -> Tensor:
        """Logits [V, O] of the wanted tokens."""
        x = ops.get_rows(self.token_embd, ubatch.tokens)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(f"blk.{i}"):
                h = self._norm(x, layer.attn_norm)  # [E, T]
                h = self._attention(h, layer, ubatch, i)  # [E, T]
                if i == len(self.layers) - 1:  # from here on only wanted tokens matter
                    h = ops.get_rows(h, ubatch.out_ids)  # [E, O]
                    x = ops.get_rows(x, ubatch.out_ids)  # [E, O]
                x = ops.add(x, h).named("ffn_inp")
                h = self._norm(x, layer.ffn_norm)
                x = ops.add(x, self._ffn(h, layer.ffn)).named("l_out")
        x = self._norm(x, self.output_norm).named("result_norm")  # [E, O]
        return ops.mul_mat(self.output, x).named("result_output")  # [V, O]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return ops.mul(ops.rms_norm(x, self.hparams.norm_eps), weight)

    def _attention(self, x: Tensor, layer: Layer, ubatch: UBatch, i: int) -> Tensor:
        h: HParams = self.hparams
        Dk, Dv, T = h.n_embd_head_k, h.n_embd_head_v, x.ne[1]
        q = linear(layer.attn_q, x, layer.attn_q_bias).named("Qcur")  # [Dk*H, T]
        q = self._rope(ops.reshape_3d(q, Dk, h.n_head, T), layer, ubatch)  # [Dk, H, T]
        k = linear(layer.attn_k, x, layer.attn_k_bias).named("Kcur")  # [Dk*Hk, T]
        k = self._rope(ops.reshape_3d(k, Dk, h.n_head_kv, T), layer, ubatch)  # [Dk, Hk, T]
        v = linear(layer.attn_v, x, layer.attn_v_bias).named("Vcur")  # [Dv*Hk, T]
        v = ops.reshape_3d(v, Dv, h.n_head_kv, T)  # [Dv, Hk, T]
        out = attend(q, k, v, ubatch, i, 1.0 / math.sqrt(Dk)).named("kqv_out")  # [Dv*H, T]
        return linear(layer.attn_output, out, layer.attn_output_bias).named("attn_out")  # [E, T]

    def _rope(self, x: Tensor, layer: Layer, ubatch: UBatch) -> Tensor:
        r = self.hparams.rope
        return ops.rope_ext(
            x, ubatch.positions, layer.rope_freqs, r.n_dims, ROPE_NORMAL, r.n_ctx_orig,
            r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow,
        )  # fmt: skip

    def _ffn(self, x: Tensor, ffn: FeedForward | Experts) -> Tensor:
        if isinstance(ffn, Experts):
            return mixture(x, ffn)  # [E, T]
        gate = ops.mul_mat(ffn.gate, x)  # [F, T]
        up = ops.mul_mat(ffn.up, x)  # [F, T]
        return ops.mul_mat(ffn.down, ops.swiglu_split(gate, up))  # [E, T]


def linear(weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b, for x [n_in, T] and weight [n_in, n_out]."""
    y = ops.mul_mat(weight, x)
    return y if bias is None else ops.add(y, bias)
