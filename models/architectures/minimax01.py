"""MiniMax-01: lightning attention in most layers, softmax attention in every eighth; experts.

MiniMax, 2025. Lightning attention (Qin et al., 2024) is linear: the state of a head, a matrix,
takes in k v and decays by a factor of its own for each token, more slowly in later layers.
Residuals are the norms' results, scaled.

Letters in shapes: E n_embd, D head size, H heads, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.layers import Layer, Mixer, PerToken, output_rows
from ggmlpy.models.blocks.recurrent import load_states, recurrent_of, scanned
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """silu(q) against the decayed sum of silu(k) v, normed over all heads and gated."""

    layer: int
    params: LayerParams
    slowness: float  # factor of the decays' logarithms
    qkv: Linear  # [E, 3*D*H]: q, k and v of each head
    norm: Norm  # [D*H]
    gate: Linear  # [E, D*H]
    output: Linear  # [D*H, E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> LightningAttention:
        """A layer's `attn_qkv`, `attn_norm_2`, `attn_gate` and `attn_output`."""
        blk, E, p = f"blk.{layer}", h.n_embd, h.layers[layer]
        if not p.n_head:
            raise h.keys.error("attention.head_count", 0, f"at least 1 in layer {layer}")
        n = p.n_embd_q

        def take(name: str, n_in: int, n_out: int, node: str) -> Linear:
            full = f"{blk}.{name}"
            return Linear.take(weights, full, n_in, n_out, node=node, scaled=False, biased=False)

        return cls(
            layer=layer,
            params=p,
            slowness=1.0 - layer / max(1, h.n_layer - 1) + 1e-5,
            qkv=take("attn_qkv", E, 3 * n, "QKVcur"),
            norm=Norm.take(weights, f"{blk}.attn_norm_2", n, h, node="qkv_norm"),
            gate=take("attn_gate", E, n, "g"),
            output=take("attn_output", n, E, "attn_out"),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """D x D elements a head."""
        p = self.params
        return (LayerState(self.layer, (p.n_embd_head_k * p.n_embd_q,)),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        D, H, T = self.params.n_embd_head_k, self.params.n_head, x.ne[1]
        qkv = ops.silu(self.qkv(x)).named("QKVcur_silu")
        qkv = ops.reshape_3d(qkv, 3 * D, H, T)
        parts = (
            ops.view_3d(qkv, D, H, T, qkv.nb[1], qkv.nb[2], i * D * qkv.nb[0]).named(f"{name}_part")
            for i, name in enumerate("qkv")
        )
        q, k, v = (
            ops.cont(x).named(name) for x, name in zip(parts, ("Qcur", "Kcur", "Vcur"), strict=True)
        )  # [D, H, T]
        decay = ops.repeat_4d(self._decays(), D, H, T, 1).named("decay")
        states = load_states(inputs, self.layer, 0, D * D * H)
        spans = recurrent_of(inputs).spans
        y = ops.gated_linear_attn(k, v, q, decay, states, 1.0, spans=spans).named("qkv")
        y = self.norm(scanned(y, D * H, inputs, self.layer, 0))  # [D*H, T]
        gate = ops.sigmoid(self.gate(x)).named("g_sigm")
        return self.output(ops.mul(gate, y).named("qkv_gated"))

    def _decays(self) -> Tensor:
        """What is left of each head's state after a token: [1, H], the slopes of ALiBi as powers
        of e."""
        H = self.params.n_head
        start = 2.0 ** -(2.0 ** -(math.log2(H) - 3.0))
        numbers = ops.arange(1.0, H + 1.0, 1.0).named("numbers")
        slopes = ops.exp(ops.scale(numbers, math.log(start)).named("log_slopes")).named("slopes")
        decays = ops.exp(ops.scale(slopes, -self.slowness).named("slope_rate"))
        return ops.reshape_2d(decays.named("head_decay"), 1, H)


@dataclass(frozen=True, slots=True)
class NormedResidualLayer:
    """n = norm(x), h = scale * n + mixer(n); likewise the experts of h."""

    attn_norm: Norm  # [E]
    mixer: Mixer
    ffn_norm: Norm  # [E]
    ffn: PerToken
    scale: float

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        x = self.attn_norm(x)  # [E, T]
        h = self.mixer(x, inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
        x = ops.scale(x, self.scale).named("residual_scaled_attn")
        x = self.ffn_norm(ops.add(h, x).named("ffn_inp"))
        residual = ops.scale(x, self.scale).named("residual_scaled_ffn")
        return ops.add(self.ffn(x), residual).named("l_out")


class MiniMax01(ExpertDecoder):
    """A minimax-01 model."""

    output_bias = False
    output_biased = False
    rope_factored = False

    def set_up(self) -> None:
        """Which layers have lightning attention."""
        h, keys = self.hparams, self.hparams.keys
        self.residual_scale = keys.real("residual_scale")
        period = keys.count("full_attention_interval", 8)
        lightning = [int((i + 1) % period != 0) for i in range(h.n_layer)]
        self.lightning = keys.per_layer("attention.recurrent_layers", lightning)

    def layer(self, i: int) -> Layer:
        """With the norms' results as residuals."""
        return NormedResidualLayer(
            self.norm(i, "attn_norm"),
            self.mixer(i),
            self.norm(i, "ffn_norm"),
            self.ffn(i),
            self.residual_scale,
        )

    def mixer(self, i: int) -> Mixer:
        """Lightning attention, or softmax attention."""
        if not self.lightning[i]:
            return super().mixer(i)
        return LightningAttention.take(self.weights, i, self.hparams)

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size, which the file gives."""
        return self.hparams.layers[i].n_ff
