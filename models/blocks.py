"""Blocks that several architectures are made of: linear maps, norms, attention, feed-forward.

Each is a dataclass of its tensors. `take` looks them up in the file and checks them; calling the
block adds it to the graph.

Nodes have llama.cpp's names. Where it gives one name to several nodes in a row, the first one has
it here, and the others have a suffix: Qcur, Qcur_b with the bias, Qcur_rope with the position.

Letters in shapes: E n_embd, D head size of q and k, Dv of v, H heads, Hk K/V heads, F n_ff,
V n_vocab, T tokens, O outputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.attention import attend
from ggmlpy.models.hparams import HParams, RopeParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class Linear:
    """scale * W x + bias. Some quantised weights are stored relative to a scale."""

    name: str  # of the product's node
    weight: Tensor  # [n_in, n_out]
    bias: Tensor | None  # [n_out]
    scale: Tensor | None  # [1]
    bias_first: bool = False  # scale * (W x + bias)

    @classmethod
    def take(
        cls,
        weights: Weights,
        name: str,
        n_in: int,
        n_out: int,
        *,
        node: str | None = None,
        scaled: bool = True,
        bias_first: bool = False,
    ) -> Linear:
        """The tensor `name.weight`, and `name.bias` and `name.scale` where the file has them.

        The product's node is called `node`, or else after the weight. A scale is ignored unless
        `scaled`, and so is that of inputs quantised to nvfp4.
        """
        weights.without_effect(f"{name}.input_scale")
        if not scaled:
            weights.without_effect(f"{name}.scale")
        return cls(
            name=node or _within_layer(name),
            weight=weights.take(f"{name}.weight", n_in, n_out),
            bias=weights.maybe(f"{name}.bias", n_out),
            scale=weights.maybe(f"{name}.scale", 1) if scaled else None,
            bias_first=bias_first,
        )

    @classmethod
    def take_output(cls, weights: Weights, h: HParams) -> Linear:
        """The map to logits [E, V]: `output.weight`, or the token embedding if it is missing."""
        weight = weights.maybe("output.weight", h.n_embd, h.n_vocab)
        if weight is None:
            weights.take("token_embd.weight", h.n_embd, h.n_vocab)
            weight = weights.duplicate("token_embd.weight", "output.weight")
        weights.without_effect("output.input_scale")
        return cls(
            name="output",
            weight=weight,
            bias=weights.maybe("output.bias", h.n_vocab),
            scale=weights.maybe("output.scale", 1),
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = ops.mul_mat(self.weight, x).named(self.name)  # [n_out, T]
        if self.bias is not None and self.bias_first:
            y = ops.add(y, self.bias).named(f"{self.name}_b")
        if self.scale is not None:
            y = ops.mul(y, self.scale).named(f"{self.name}_s")
        if self.bias is not None and not self.bias_first:
            y = ops.add(y, self.bias).named(f"{self.name}_b")
        return y


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm times the weight, which is used as stored."""

    name: str  # of the result's node
    weight: Tensor  # [n]
    eps: float

    @classmethod
    def take(
        cls, weights: Weights, name: str, n: int, h: HParams, *, node: str | None = None
    ) -> Norm:
        """The tensor `name.weight`. The result's node is called `node`, or else after it."""
        return cls(node or _within_layer(name), weights.take(f"{name}.weight", n), h.norm_eps)

    def __call__(self, x: Tensor) -> Tensor:
        y = ops.rms_norm(x, self.eps).named(f"{self.name}.norm")
        return ops.mul(y, self.weight).named(self.name)


def _within_layer(name: str) -> str:
    """`blk.3.ffn_up` -> `ffn_up`"""
    return re.sub(r"^blk\.\d+\.", "", name)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding, with the parameters of an architecture."""

    params: RopeParams
    mode: RopeMode
    freq_factors: Tensor | None = None  # [n_dims/2]

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        r = self.params
        return ops.rope_ext(
            x, positions, self.freq_factors, r.n_dims, self.mode, r.n_ctx_orig,
            r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow,
        )  # fmt: skip

    def shift(self, keys: Tensor, deltas: Tensor) -> Tensor:
        """Rotate stored keys [D, Hk, n] by position deltas [n] (KV shift); no magnitude scaling."""
        r = self.params
        # With YaRN rope_ext multiplies by this factor, which stored keys already contain.
        yarn = 1.0 + 0.1 * math.log(1.0 / r.freq_scale) if r.ext_factor else 1.0
        return ops.rope_ext(
            keys, deltas, self.freq_factors, r.n_dims, self.mode, r.n_ctx_orig,
            r.freq_base, r.freq_scale, r.ext_factor, 1.0 / yarn, r.beta_fast, r.beta_slow,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Grouped-query attention with rotary q and k, which may be normed per head before."""

    layer: int
    n_head: int
    n_head_kv: int
    q: Linear  # [E, D*H]
    k: Linear  # [E, D*Hk]
    v: Linear  # [E, Dv*Hk]
    output: Linear  # [Dv*H, E]
    q_norm: Norm | None  # [D]
    k_norm: Norm | None  # [D]
    rope: Rope
    scale: float

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        rope: Rope,
        *,
        qk_norm: bool = False,
        scale: float | None = None,
    ) -> SelfAttention:
        """A layer's attention. The default scale of q k^T is 1 / sqrt(D)."""
        blk, E, D, Dv = f"blk.{layer}", h.n_embd, h.n_embd_head_k, h.n_embd_head_v
        norm = partial(Norm.take, weights)
        return cls(
            layer=layer,
            n_head=h.n_head,
            n_head_kv=h.n_head_kv,
            q=Linear.take(weights, f"{blk}.attn_q", E, D * h.n_head, node="Qcur"),
            k=Linear.take(weights, f"{blk}.attn_k", E, D * h.n_head_kv, node="Kcur"),
            v=Linear.take(weights, f"{blk}.attn_v", E, Dv * h.n_head_kv, node="Vcur"),
            output=Linear.take(weights, f"{blk}.attn_output", Dv * h.n_head, E, node="kqv_wo"),
            q_norm=norm(f"{blk}.attn_q_norm", D, h, node="Qcur_normed") if qk_norm else None,
            k_norm=norm(f"{blk}.attn_k_norm", D, h, node="Kcur_normed") if qk_norm else None,
            rope=rope,
            scale=1.0 / math.sqrt(D) if scale is None else scale,
        )

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        q = self._heads(self.q(x), self.n_head)  # [D, H, T]
        k = self._heads(self.k(x), self.n_head_kv)  # [D, Hk, T]
        v = self._heads(self.v(x), self.n_head_kv)  # [Dv, Hk, T]
        q = self.q_norm(q) if self.q_norm is not None else q
        k = self.k_norm(k) if self.k_norm is not None else k
        q = self.rope(q, inputs.positions).named("Qcur_rope")
        k = self.rope(k, inputs.positions).named("Kcur_rope")
        out = attend(q, k, v, inputs, self.layer, self.scale)  # [Dv*H, T]
        return self.output(out).named("attn_out")  # [E, T]

    @staticmethod
    def _heads(x: Tensor, n_head: int) -> Tensor:
        return ops.reshape_3d(x, x.ne[0] // n_head, n_head, x.ne[1])


Gated = Literal["swiglu", "geglu"]
_GATED: dict[Gated, Callable[[Tensor, Tensor], Tensor]] = {  # (gate, up) -> act(gate) * up
    "swiglu": ops.swiglu_split,
    "geglu": ops.geglu_split,
}


@dataclass(frozen=True, slots=True)
class FeedForward:
    """down(act(gate(x)) * up(x)): SwiGLU or GeGLU (Shazeer, 2020)."""

    gate: Linear  # [E, F]
    up: Linear  # [E, F]
    down: Linear  # [F, E]
    gated: Gated

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        gated: Gated = "swiglu",
        *,
        scaled: bool = True,
    ) -> FeedForward:
        """A layer's feed-forward. `scaled` as in llama.cpp, which applies its scales in llama and
        qwen3 (to the biases too) and ignores them in qwen2, gemma3 and lfm2.
        """
        blk, E, F = f"blk.{layer}", h.n_embd, h.n_ff
        take = partial(Linear.take, weights, scaled=scaled, bias_first=True)
        return cls(
            gate=take(f"{blk}.ffn_gate", E, F),
            up=take(f"{blk}.ffn_up", E, F),
            down=take(f"{blk}.ffn_down", F, E),
            gated=gated,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        gated = _GATED[self.gated]
        h = gated(self.gate(x), self.up(x)).named(f"ffn_{self.gated}")  # [F, T]
        return self.down(h).named("ffn_out")  # [E, T]
