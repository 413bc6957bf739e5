"""The attention block: q, k and v of each token, attention over the cache, the map back.

Letters in shapes: E n_embd, D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import Scores, attend
from ggmlpy.models.blocks.basic import Linear, Norm, NormKind, Rope
from ggmlpy.models.hparams import HParams, LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerKV, LayerMemory
from ggmlpy.models.weights import Weights


class Projection(Protocol):
    """The maps to q, k and v."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [E, T] -> q [D*H, T], k [D*Hk, T], v [Dv*Hk, T]; rows are contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateQKV:
    """Three linear maps."""

    q: Linear  # [E, D*H]
    k: Linear  # [E, D*Hk]
    v: Linear  # [E, Dv*Hk]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), self.k(x), self.v(x)


@dataclass(frozen=True, slots=True)
class FusedQKV:
    """One linear map; q, k and v are parts of its result."""

    qkv: Linear  # [E, D*H + D*Hk + Dv*Hk]
    biases: tuple[Tensor, Tensor, Tensor] | None  # of a file that has them apart
    n: tuple[int, int, int]  # elements of q, k, v

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x)
        parts, offset = [], 0
        for i, name in enumerate(("Qcur", "Kcur", "Vcur")):
            part = ops.view_2d(qkv, self.n[i], qkv.ne[1], qkv.nb[1], offset * qkv.type.row_bytes(1))
            offset += self.n[i]
            if self.biases is not None:
                part = ops.add(part, self.biases[i])
            parts.append(part.named(name))
        return parts[0], parts[1], parts[2]


def take_projection(
    weights: Weights,
    layer: int,
    E: int,
    p: LayerParams,
    *,
    scaled: bool = True,
    plain: bool = False,
) -> Projection:
    """A layer's `attn_qkv` if the file has it, else `attn_q`, `attn_k` and `attn_v`.

    A scale of `attn_qkv` is ignored unless `scaled`. Biases and scales of all are left unused where
    the maps are `plain`.
    """
    blk, n = f"blk.{layer}", (p.n_embd_q, p.n_embd_k, p.n_embd_v)
    take = partial(Linear.take, weights, biased=not plain)
    if not weights.has(f"{blk}.attn_qkv.weight"):
        q, k, v = (
            take(f"{blk}.attn_{name}", E, width, node=f"{name.upper()}cur", scaled=not plain)
            for name, width in zip("qkv", n, strict=True)
        )
        return SeparateQKV(q, k, v)
    qkv = take(f"{blk}.attn_qkv", E, sum(n), node="wqkv", scaled=scaled and not plain)
    names = [f"{blk}.attn_{name}.bias" for name in "qkv"]
    if plain or qkv.bias is not None or not all(map(weights.has, names)):
        return FusedQKV(qkv, None, n)  # biases apart, if any, are left unused
    of_q, of_k, of_v = (weights.take(name, width) for name, width in zip(names, n, strict=True))
    return FusedQKV(qkv, (of_q, of_k, of_v), n)


@dataclass(frozen=True, slots=True)
class Temperature:
    """q grows with the position p by 1 + scale * ln(1 + floor((p + offset) / period))."""

    scale: float
    period: float
    offset: float = 0.0

    def __call__(self, q: Tensor, inputs: GraphInputs) -> Tensor:
        """q [D, H, T] -> [D, H, T]"""
        with scope("attn_scale"):
            p = ops.cast(inputs.positions, "f32")  # [T]
            p = ops.scale_bias(p, 1.0, self.offset).named("position")
            period = ops.arange(self.period, self.period + 1.0, 1.0)  # [1]
            steps = ops.scale_bias(ops.floor(ops.div(p, period)), 1.0, 1.0).named("steps")
            grown = ops.log(steps)
        factor = ops.scale_bias(grown, self.scale, 1.0).named("attn_scale")  # [T]
        return ops.mul(q, ops.reshape_3d(factor, 1, 1, q.ne[2])).named("Qcur_attn_temp_scaled")


GateActivation = Literal["sigmoid", "softplus"]


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Grouped-query attention (Ainslie et al., 2023) with what architectures add to it.

    In this order: q, k and v are held within `clamp`; q and k are normed, per head or over all
    heads as the weights are; rotated (or rotated, then normed, with `norm_last`); q is scaled with
    the position; and the result of attention is multiplied by the sigmoid or softplus of gate(x),
    normed, mapped back.
    """

    layer: int
    params: LayerParams
    qkv: Projection
    output: Linear  # [Dv*H, E]
    scale: float  # of q k^T
    rope: Rope | None  # None: no positions, or learned ones, or ALiBi
    q_norm: Norm | None = None  # [D], [D, H] or [D*H]
    k_norm: Norm | None = None  # [D], [D, Hk] or [D*Hk]
    norm_last: bool = False
    clamp: float = 0.0
    temperature: Temperature | None = None
    sinks: Tensor | None = None  # [H]: Xiao et al., 2023, as gpt-oss has them
    softcap: float = 0.0
    max_bias: float = 0.0  # ALiBi: Press et al., 2021
    gate: Linear | None = None  # [E, Dv*H], or [E, H] with one for each head
    gate_activation: GateActivation = "sigmoid"
    out_norm: Norm | None = None  # [Dv*H]
    is_causal: bool = True

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        rope: Rope | None,
        *,
        scale: float | None = None,
        qk_norm: NormKind | None = None,
        norm_last: bool = False,
        clamp: float = 0.0,
        temperature: Temperature | None = None,
        softcap: float = 0.0,
        max_bias: float = 0.0,
        gate: str | None = None,
        out_norm: NormKind | None = None,
        output_bias: bool = True,
        qkv_scaled: bool = True,
        qkv_plain: bool = False,
    ) -> SelfAttention:
        """A layer's attention. The default scale of q k^T is 1 / sqrt(D).

        With `qk_norm` q and k are normed where the file has the weights, which say what over. The
        gate is the tensor of this name, as "attn_gate". Sinks are those of the file, if any.
        Without `output_bias` a bias of the map back is left unused, without `qkv_scaled` a scale of
        fused q, k, v, with `qkv_plain` biases and scales of q, k and v, as llama.cpp does in some.
        """
        blk, E, p = f"blk.{layer}", h.n_embd, h.layers[layer]
        if not p.n_head or not p.n_head_kv:
            key = "attention.head_count_kv" if p.n_head else "attention.head_count"
            raise h.keys.error(key, 0, f"at least 1 in layer {layer}")
        q_norm = k_norm = None
        if qk_norm is not None:
            q_norm = _take_norm(weights, layer, "q", p.n_head, h, qk_norm)
            k_norm = _take_norm(weights, layer, "k", p.n_head_kv, h, qk_norm)
        gate_map = None
        if gate is not None and weights.has(f"{blk}.{gate}.weight"):
            n_gate = p.n_head if weights.ne(f"{blk}.{gate}.weight")[1] == p.n_head else p.n_embd_out
            gate_map = Linear.take(weights, f"{blk}.{gate}", E, n_gate, scaled=False)
        normed = None
        if out_norm is not None:
            normed = Norm.maybe(weights, f"{blk}.attn_sub_norm", p.n_embd_out, h, out_norm)
        return cls(
            layer=layer,
            params=p,
            qkv=take_projection(weights, layer, E, p, scaled=qkv_scaled, plain=qkv_plain),
            output=Linear.take(
                weights, f"{blk}.attn_output", p.n_embd_out, E, node="kqv_wo", biased=output_bias
            ),
            scale=1.0 / math.sqrt(p.n_embd_head_k) if scale is None else scale,
            rope=rope if rope is not None and rope.params.n_dims else None,
            q_norm=q_norm,
            k_norm=k_norm,
            norm_last=norm_last,
            clamp=clamp,
            temperature=temperature,
            sinks=weights.maybe(f"{blk}.attn_sinks.weight", p.n_head),
            softcap=softcap,
            max_bias=max_bias,
            gate=gate_map,
            out_norm=normed,
            is_causal=h.is_causal,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """K and V of the layer."""
        p = self.params
        kv = LayerKV(self.layer, p.kv, p.window, self.is_causal, self.max_bias > 0, rope=self.rope)
        return (kv,)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        p = self.params
        q, k, v = self.qkv(x)
        if self.clamp:
            q, k, v = self._clamped(q, "Q"), self._clamped(k, "K"), self._clamped(v, "V")
        q = self._positioned(q, "Q", p.n_head, self.q_norm, inputs)  # [D, H, T]
        k = self._positioned(k, "K", p.n_head_kv, self.k_norm, inputs)  # [D, Hk, T]
        v = heads(v, p.n_head_kv)  # [Dv, Hk, T]
        if self.temperature is not None:
            q = self.temperature(q, inputs)
        scores = Scores(self.scale, self.softcap, self.max_bias, self.sinks)
        out = attend(q, k, v, inputs, self.layer, scores)  # [Dv*H, T]
        if self.gate is not None:
            out = gated(out, self.gate(x), self.gate_activation)
        if self.out_norm is not None:
            out = self.out_norm(out)
        return self.output(out).named("attn_out")  # [E, T]

    def _clamped(self, x: Tensor, part: str) -> Tensor:
        return ops.clamp(x, -self.clamp, self.clamp).named(f"{part}cur_clamped")

    def _positioned(
        self, x: Tensor, part: str, n_head: int, norm: Norm | None, inputs: GraphInputs
    ) -> Tensor:
        """x [D*H, T], normed and rotated: [D, H, T]"""
        if norm is not None and not self.norm_last and norm.spans(x.ne[0]):
            x, norm = norm(x if x.contiguous else ops.cont(x).named(f"{part}cur_cont")), None
        x = heads(x, n_head)
        if norm is not None and not self.norm_last:
            x = norm(x)
        if self.rope is not None:
            x = self.rope(x, inputs).named(f"{part}cur_rope")
        if norm is not None and self.norm_last:
            x = norm(x)
        return x


def _take_norm(
    weights: Weights, layer: int, part: str, n_head: int, h: HParams, kind: NormKind
) -> Norm | None:
    name, D = f"blk.{layer}.attn_{part}_norm", h.layers[layer].n_embd_head_k
    if not weights.has(f"{name}.weight"):
        return None
    n, n_heads = weights.ne(f"{name}.weight")[:2]
    ne: int | tuple[int, int] = D
    if n_heads > 1:
        ne = (D, n_head)
    elif n != D and n == D * n_head:
        ne = D * n_head
    return Norm.take(weights, name, ne, h, kind, node=f"{part.upper()}cur_normed")


def heads(x: Tensor, n_head: int) -> Tensor:
    """x [D*H, T], which may be a part of longer rows -> [D, H, T]"""
    D, T = x.ne[0] // n_head, x.ne[1]
    if x.contiguous:
        return ops.reshape_3d(x, D, n_head, T)
    return ops.view_3d(x, D, n_head, T, x.type.row_bytes(D), x.nb[1], 0)


def gated(out: Tensor, gate: Tensor, activation: GateActivation = "sigmoid") -> Tensor:
    """out [Dv*H, T] times the sigmoid or softplus of gate [Dv*H or H, T]."""
    activated = ops.sigmoid(gate) if activation == "sigmoid" else ops.softplus(gate)
    gate = activated.named(f"attn_gate_{activation}")
    if gate.ne[0] == out.ne[0]:
        return ops.mul(out, gate).named("attn_gated")
    H, T = gate.ne[0], gate.ne[1]
    by_head = ops.reshape_3d(out, out.ne[0] // H, H, T)  # [Dv, H, T]
    scaled = ops.mul(by_head, ops.reshape_3d(gate, 1, H, T)).named("attn_gated_heads")
    return ops.reshape_2d(scaled, out.ne[0], T).named("attn_gated")
