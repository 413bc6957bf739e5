"""Kimi Delta Attention: a delta net whose state decays by a factor for each element of the key.

Source: Kimi Team, "Kimi Linear", 2025. q, k and v have a short convolution each; the result is
normed per head and gated by a sigmoid.

Letters in shapes: E n_embd, D head size, H heads, W = D*H, K taps of the convolutions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.delta_net import delta_rule, take_n_taps, unit
from ggmlpy.models.blocks.recurrent import convolve
from ggmlpy.models.blocks.self_attention import FusedQKV, Projection, SeparateQKV, heads
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.keys import Keys
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Decay:
    """The logarithm of the factors by which the state decays: a softplus(y), where a is below 0.

    With a bound below 0, which no factor's logarithm falls below, bound * sigmoid(|a| y).
    """

    bound: float = 0.0  # 0: none
    positive: bool = False  # the file has |a|, not a

    def __call__(self, y: Tensor, a: Tensor) -> Tensor:
        """y [D, H, T], a [1, H] -> [D, H, T]"""
        with scope("kda_g1"):
            if not self.bound:
                return ops.mul(ops.softplus(y), a)
            y = ops.mul(y, a)
            if not self.positive:
                y = ops.neg(y)
            return ops.scale(ops.sigmoid(y), self.bound)


def read_decay(keys: Keys, *, positive: bool = False) -> Decay:
    """The decay of the file's `kda.gate_lower_bound`; see Decay for `positive`.

    Raises WeightError for a bound that is not below 0.
    """
    if not keys.has("kda.gate_lower_bound"):
        return Decay()
    bound = keys.signed("kda.gate_lower_bound")
    if bound >= 0:
        raise keys.error("kda.gate_lower_bound", bound, "below 0")
    return Decay(bound, positive)


@dataclass(frozen=True, slots=True)
class LowRank:
    """b(a(x)), or only one map."""

    a: Linear | None  # [E, D]
    b: Linear  # [D or E, W]

    @classmethod
    def take(cls, weights: Weights, name: str, E: int, D: int, W: int, node: str) -> LowRank:
        """The tensors `{name}_a` and `{name}_b`, or `{name}`, or `{name}_a` alone."""
        take = partial(Linear.take, weights, scaled=False, biased=False)
        if weights.has(f"{name}_b.weight"):
            return cls(take(f"{name}_a", E, D), take(f"{name}_b", D, W, node=node))
        alone = name if weights.has(f"{name}.weight") else f"{name}_a"
        return cls(None, take(alone, E, W, node=node))

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [W, T]"""
        return self.b(x if self.a is None else self.a(x))


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """Kimi Delta Attention of one layer."""

    layer: int
    n_head: int
    qkv: Projection  # [E, W] each
    convs: tuple[Tensor, Tensor, Tensor]  # [K, W] each
    decay_map: LowRank  # [E, W]
    dt_bias: Tensor  # [W]
    a: Tensor  # [1, H]
    decay: Decay
    beta: Linear  # [E, H]
    gate: LowRank  # [E, W]
    norm: Norm  # [D]
    output: Linear  # [W, E]
    eps: float  # of the length of q and k

    @classmethod
    def take(
        cls, weights: Weights, layer: int, h: HParams, decay: Decay, *, eps: float | None = None
    ) -> KimiDelta:
        """A layer's tensors: heads of `kda.head_dim`, as many as the first layer has."""
        blk, E, H = f"blk.{layer}", h.n_embd, h.layers[0].n_head
        if not H:
            raise h.keys.error("attention.head_count", H, "at least 1 in layer 0")
        D, K = h.keys.count("kda.head_dim"), take_n_taps(h)
        W = D * H
        take = partial(Linear.take, weights, scaled=False, biased=False)
        qkv: Projection
        if weights.has(f"{blk}.attn_qkv.weight"):
            qkv = FusedQKV(take(f"{blk}.attn_qkv", E, 3 * W, node="wqkv"), None, (W, W, W))
        else:
            q, k, v = (take(f"{blk}.attn_{part}", E, W, node=f"{part}_in") for part in "qkv")
            qkv = SeparateQKV(q, k, v)
        q_conv, k_conv, v_conv = (
            # Files have these as [K, 1, W].
            ops.reshape_2d(weights.take(f"{blk}.ssm_conv1d_{part}.weight", K, 1, W), K, W)
            for part in "qkv"
        )
        return cls(
            layer=layer,
            n_head=H,
            qkv=qkv,
            convs=(q_conv, k_conv, v_conv),
            decay_map=LowRank.take(weights, f"{blk}.ssm_f", E, D, W, "g1"),
            dt_bias=weights.take(f"{blk}.ssm_dt.bias", W),
            a=_take_a(weights, f"{blk}.ssm_a", H),
            decay=decay,
            beta=take(f"{blk}.ssm_beta", E, H, node="kda_beta"),
            gate=LowRank.take(weights, f"{blk}.ssm_g", E, D, W, "kda_g2"),
            norm=Norm.take(weights, f"{blk}.ssm_norm", D, h, node="kda_normed"),
            output=take(f"{blk}.attn_output", W, E, node="kda_out"),
            eps=h.rms_norm_eps if eps is None else eps,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The columns of three convolutions and the states."""
        K, W = self.convs[0].ne[:2]
        columns = (K - 1) * W
        return (LayerState(self.layer, (columns, columns, columns, W // self.n_head * W), K),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        H, T, W = self.n_head, x.ne[1], self.convs[0].ne[1]
        q, k, v = (
            heads(self._convolved(part, i, inputs), H) for i, part in enumerate(self.qkv(x))
        )  # [D, H, T]
        decay = ops.add(self.decay_map(x), self.dt_bias).named("g1_biased")  # [W, T]
        decay = self.decay(heads(decay, H), self.a)  # [D, H, T]
        beta = ops.sigmoid(ops.reshape_3d(self.beta(x), 1, H, T)).named("kda_beta_sigmoid")
        q, k = unit(q, self.eps, "kda_q_unit"), unit(k, self.eps, "kda_k_unit")
        out = delta_rule(q, k, v, decay, beta, inputs, self.layer, 3)  # [D, H, T]
        gate = ops.sigmoid(heads(self.gate(x), H)).named("kda_gate")
        gated = ops.mul(self.norm(out), gate).named("kda_gated")
        return self.output(ops.reshape_2d(gated, W, T))  # [E, T]

    def _convolved(self, x: Tensor, i: int, inputs: GraphInputs) -> Tensor:
        """q, k or v [W, T] after its convolution: [W, T]"""
        with scope(f"kda_{'qkv'[i]}"):
            return ops.silu(convolve(x, self.convs[i], inputs, self.layer, i)).named("conv_silu")


def _take_a(weights: Weights, name: str, H: int) -> Tensor:
    """[1, H], which files of Kimi K3 store as [H]."""
    if weights.has(name) and weights.ne(name)[0] == H != 1:
        return ops.reshape_2d(weights.take(name, H), 1, H)
    return weights.take(name, 1, H)
