"""Qwen3-Next (2025) and Qwen3.5 (2026): gated delta nets in most layers, gated attention in some.

Alibaba. Attention's result is gated by the sigmoid of what comes with q from one map; Qwen3.5 has
M-RoPE. The layers of Qwen3-Next and of Qwen3.5's larger models have experts, one of them shared.

Letters in shapes: E n_embd, D head size, H heads, Hk K/V heads, T tokens; of delta nets W inner
size, Dn head size, G groups of heads that share q and k, B heads of a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import Scores, attend
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.delta_net import (
    DeltaProjection,
    DeltaSizes,
    GateActivation,
    GatedDeltaNet,
    SeparateDelta,
)
from ggmlpy.models.blocks.layers import Layer, Mixer, SequentialLayer
from ggmlpy.models.blocks.self_attention import (
    Projection,
    SeparateQKV,
    gated,
    heads,
    take_projection,
)
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerKV, LayerMemory
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class GatedAttention:
    """Grouped-query attention; each head has its q and, behind it, its gate from one map."""

    layer: int
    params: LayerParams
    qkv: Projection  # q and gate [2*D*H, T], k, v
    q_norm: Norm  # [D]
    k_norm: Norm  # [D]
    rope: Rope
    output: Linear  # [D*H, E]

    @classmethod
    def take(
        cls, weights: Weights, layer: int, h: HParams, rope: Rope, *, biased: bool = True
    ) -> GatedAttention:
        """A layer's attention. Biases of q, k and v are left unused unless `biased`.

        Raises WeightError if heads of k and v differ in size, or if there are none.
        """
        blk, E, p = f"blk.{layer}", h.n_embd, h.layers[layer]
        D = p.n_embd_head_k
        if p.n_embd_head_v != D:
            raise h.keys.error("attention.value_length", p.n_embd_head_v, f"{D}, the key_length")
        if not p.n_head or not p.n_head_kv:
            raise h.keys.error("attention.head_count", p.n_head, f"at least 1 in layer {layer}")
        doubled = replace(p, n_head=2 * p.n_head)
        return cls(
            layer=layer,
            params=p,
            qkv=take_projection(weights, layer, E, doubled)
            if biased
            else _without_biases(weights, layer, E, doubled),
            q_norm=Norm.take(weights, f"{blk}.attn_q_norm", D, h, node="Qcur_normed"),
            k_norm=Norm.take(weights, f"{blk}.attn_k_norm", D, h, node="Kcur_normed"),
            rope=rope,
            output=Linear.take(
                weights, f"{blk}.attn_output", D * p.n_head, E, node="attn_output", biased=False
            ),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """K and V of the layer."""
        return (LayerKV(self.layer, self.params.kv, rope=self.rope),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        p, T = self.params, x.ne[1]
        D, H, Hk = p.n_embd_head_k, p.n_head, p.n_head_kv
        both, k, v = self.qkv(x)
        both = heads(both.named("Qcur_full"), H)  # [2*D, H, T]
        q, gate = (
            ops.view_3d(both, D, H, T, *both.nb[1:3], i * both.type.row_bytes(D)).named(name)
            for i, name in enumerate(("Qcur_view", "gate"))
        )  # [D, H, T]
        q = self.rope(self.q_norm(q), inputs).named("Qcur_rope")
        k = self.rope(self.k_norm(heads(k, Hk)), inputs).named("Kcur_rope")
        scores = Scores(1.0 / math.sqrt(D))
        out = attend(q, k, heads(v, Hk), inputs, self.layer, scores).named("attn_pregate")
        gate = ops.cont_2d(gate, D * H, T).named("gate_reshaped")
        return self.output(gated(out, gate))  # [E, T]


def _without_biases(weights: Weights, layer: int, E: int, p: LayerParams) -> SeparateQKV:
    return SeparateQKV(
        *(
            Linear.take(weights, f"blk.{layer}.attn_{part}", E, n, node=f"{part.upper()}cur",
                        biased=False)
            for part, n in zip("qkv", (p.n_embd_q, p.n_embd_k, p.n_embd_v), strict=True)
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupedDelta:
    """The maps of Qwen3-Next, whose beta and alpha lie together by the heads of k.

    So do q, k, v and z in older files, which have one map for all.
    """

    sizes: DeltaSizes
    qkv: Linear  # [E, 2*Dn*G + W], or of older files [E, 2*Dn*G + 2*W]
    z: Linear | None  # [E, W]
    ba: Linear  # [E, 2*H]

    @classmethod
    def take(cls, weights: Weights, layer: int, s: DeltaSizes, E: int) -> GroupedDelta:
        """A layer's `attn_qkv` and `attn_gate`, or else `ssm_in`; `ssm_ba`."""

        def take(name: str, n: int, node: str) -> Linear:
            full = f"blk.{layer}.{name}"
            return Linear.take(weights, full, E, n, node=node, scaled=False, biased=False)

        ba = take("ssm_ba", 2 * s.n_head, "linear_attn_mixed_ba")
        if weights.has(f"blk.{layer}.ssm_in.weight") and not weights.has(
            f"blk.{layer}.attn_qkv.weight"
        ):
            return cls(s, take("ssm_in", s.n_conv + s.n_v, "linear_attn_mixed_qkvz"), None, ba)
        qkv = take("attn_qkv", s.n_conv, "linear_attn_qkv_mixed")
        return cls(s, qkv, take("attn_gate", s.n_v, "z"), ba)

    def qkvz(self, x: Tensor) -> tuple[Tensor, Tensor]:
        qkv = self.qkv(x)
        if self.z is not None:
            return qkv, self.z(x)
        n_k, n_v = self.sizes.n_embd_head, self.sizes.n_v // self.sizes.n_head_k
        q, k, v, z = self._parts(qkv, q=n_k, k=n_k, v=n_v, z=n_v)
        qk = ops.concat(q, k, 0).named("qk_mixed")
        return ops.concat(qk, v, 0).named("qkv_mixed"), z

    def beta_alpha(self, x: Tensor) -> tuple[Tensor, Tensor]:
        B = self.sizes.n_head // self.sizes.n_head_k
        beta, alpha = self._parts(self.ba(x), b=B, a=B)
        return beta, alpha

    def _parts(self, x: Tensor, **n: int) -> list[Tensor]:
        """So many elements of each group's, one part after another: [n*G, T] each."""
        G, T = self.sizes.n_head_k, x.ne[1]
        x = ops.reshape_3d(x, x.ne[0] // G, G, T)
        parts, first = [], 0
        for name, width in n.items():
            offset = x.type.row_bytes(1) * first
            part = ops.view_3d(x, width, G, T, x.nb[1], x.nb[2], offset).named(name)
            parts.append(ops.cont_2d(part, width * G, T).named(f"{name}_flat"))
            first += width
        return parts


class DeltaNetDecoder(PreNormDecoder):
    """Gated delta nets, and gated attention in every fourth layer or as the file says."""

    rope_factored = False
    output_biased = False
    ffn_scaled = True
    attn_biased = True  # see GatedAttention
    delta_scaled = True  # the map back of delta nets, see Linear
    neighbours = False  # see GatedDeltaNet
    delta_gate: ClassVar[GateActivation] = "silu"

    def set_up(self) -> None:
        """Which layers have attention."""
        h, keys = self.hparams, self.hparams.keys
        period = keys.count("full_attention_interval", 4)
        recurrent = [int((i + 1) % period != 0) for i in range(h.n_layer)]
        self.recurrent = keys.per_layer("attention.recurrent_layers", recurrent)

    def layer(self, i: int) -> Layer:
        """Its norms have names of their own."""
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn=self.ffn(i),
            sum_node="attn_residual",
        )

    def mixer(self, i: int) -> Mixer:
        """A delta net or attention."""
        h, weights = self.hparams, self.weights
        if not self.recurrent[i]:
            rope = self.rope(i, self.rope_mode)
            return GatedAttention.take(weights, i, h, rope, biased=self.attn_biased)
        return GatedDeltaNet.take(
            weights,
            i,
            h,
            self.projection(i, DeltaSizes.read(h)),
            scaled=self.delta_scaled,
            neighbours=self.neighbours,
            gate=self.delta_gate,
        )

    def projection(self, i: int, sizes: DeltaSizes) -> DeltaProjection:
        """The maps of a delta net's input."""
        return SeparateDelta.take(self.weights, i, sizes, self.hparams.n_embd)


class DeltaNetExperts(DeltaNetDecoder, ExpertDecoder):
    """The same with experts, of which one is shared and gated."""

    experts_scaled = True

    def n_ff_shared(self, i: int) -> int:
        """`expert_shared_feed_forward_length`, or a dense block's."""
        h = self.hparams
        return h.keys.whole("expert_shared_feed_forward_length", 0) or h.layers[i].n_ff


class Qwen3Next(DeltaNetExperts):
    """A qwen3next model."""

    delta_scaled = False
    neighbours = True

    def projection(self, i: int, sizes: DeltaSizes) -> DeltaProjection:
        """In groups of heads."""
        return GroupedDelta.take(self.weights, i, sizes, self.hparams.n_embd)


class Qwen35(DeltaNetDecoder):
    """A dense qwen35 model."""

    rope_mode = RopeMode.IMROPE


class Qwen35Moe(DeltaNetExperts):
    """A qwen35moe model."""

    rope_mode = RopeMode.IMROPE
