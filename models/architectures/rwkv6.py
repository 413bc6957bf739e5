"""RWKV-6 "Finch" (Peng et al., 2024), and its time mixing in Qwen2 (QRWKV6: Recursal AI, 2024).

The proportions in which a token is mixed with the one before depend on the token, by maps of low
rank; so does the decay w of the state. In Qwen2's attention's place k is scaled by 1 - w, which
needs no bonus for the token itself and no norm of heads.

Letters in shapes: E n_embd, D head size, H heads, Hk of k and v, M and L ranks, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.rwkv import (
    TIME_SHIFT,
    HeadNorm,
    LowRank,
    RwkvSizes,
    lerp,
    parts_of,
    scan_states,
    take_plain,
    token_shift,
)
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.models.rwkv_decoder import RwkvDecoder
from ggmlpy.models.weights import Weights

PARTS = "wkvrg"  # what a token is mixed for, in the order of fused weights


@dataclass(frozen=True, slots=True)
class TokenLerps:
    """Five mixtures of each token with the one before, in proportions that it decides."""

    lerp_x: Tensor  # [E]
    down: Tensor  # [E, 5*M]
    ups: Tensor  # [M, E, 5]
    lerps: tuple[Tensor, ...]  # [E] each

    @classmethod
    def take(cls, weights: Weights, layer: int, E: int, M: int) -> TokenLerps:
        """A layer's `time_mix_lerp_*`, fused or as in older files apart, `time_mix_w1`, `_w2`."""
        name = f"blk.{layer}.time_mix"
        fused = weights.maybe(f"{name}_lerp_fused.weight", E, 1, 1, len(PARTS))
        return cls(
            lerp_x=weights.take(f"{name}_lerp_x.weight", E),
            down=weights.take(f"{name}_w1.weight", E, M * len(PARTS)),
            ups=weights.take(f"{name}_w2.weight", M, E, len(PARTS)),
            lerps=tuple(weights.take(f"{name}_lerp_{part}.weight", E) for part in PARTS)
            if fused is None
            else parts_of(fused, E, PARTS),
        )

    def __call__(self, x: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        """x and shift [E, T] -> five times [E, T]"""
        M, E, n, _ = self.ups.ne
        ranks = ops.mul_mat(self.down, lerp(x, shift, self.lerp_x, "xxx")).named("ranks")
        ranks = ops.tanh(ranks).named("ranks_tanh")  # [5*M, T]
        mixed = []
        for i in range(n):
            name = f"x{PARTS[i]}"
            with scope(name):
                up = ops.view_2d(self.ups, M, E, self.ups.nb[1], i * self.ups.nb[2]).named("up")
                rank = ops.view_2d(ranks, M, x.ne[1], ranks.nb[1], i * M * ranks.nb[0])
                weight = ops.add(ops.mul_mat(up, rank.named("rank")), self.lerps[i])  # [E, T]
            mixed.append(lerp(x, shift, weight, name))
        return tuple(mixed)


@dataclass(frozen=True, slots=True)
class Inputs6:
    """What RWKV-6's time mixing takes of each token: r, k, v, the gate and the decay."""

    layer: int
    sizes: RwkvSizes
    lerps: TokenLerps
    receptance: Linear  # [E, E]
    key: Linear  # [E, D*Hk]
    value: Linear  # [E, D*Hk]
    gate: Linear  # [E, E]
    decay: LowRank  # rank L

    @classmethod
    def take(
        cls, weights: Weights, layer: int, h: HParams, sizes: RwkvSizes, n_kv: int, *, biased: bool
    ) -> Inputs6:
        """A layer's `time_mix_*`."""
        name, E = f"blk.{layer}.time_mix", h.n_embd
        L = h.keys.count("time_decay_extra_dim")
        return cls(
            layer=layer,
            sizes=sizes,
            lerps=TokenLerps.take(weights, layer, E, h.keys.count("time_mix_extra_dim")),
            receptance=Linear.take(
                weights, f"{name}_receptance", E, E, scaled=False, biased=biased
            ),
            key=Linear.take(weights, f"{name}_key", E, n_kv, scaled=False, biased=biased),
            value=Linear.take(weights, f"{name}_value", E, n_kv, scaled=False, biased=biased),
            gate=take_plain(weights, f"{name}_gate", E, E),
            decay=LowRank(
                "time_mix_decay",
                weights.take(f"{name}_decay_w1.weight", E, L),
                weights.take(f"{name}_decay_w2.weight", L, E),
                weights.take(f"{name}_decay.weight", E),
                ops.tanh,
            ),
        )

    def __call__(self, x: Tensor, inputs: GraphInputs) -> tuple[Tensor, ...]:
        """x [E, T] -> r, k, v [D, H, T], the gate [E, T] before its activation, w [D, H, T]"""
        shift = token_shift(x, inputs, self.layer, TIME_SHIFT)
        xw, xk, xv, xr, xg = self.lerps(x, shift)
        heads = self.sizes.heads
        rate = ops.exp(self.decay(xw)).named("time_mix_decay_rate")
        w = ops.exp(ops.neg(rate).named("time_mix_log_decay")).named("time_mix_decay")
        k, v = self._repeated(self.key(xk), "k"), self._repeated(self.value(xv), "v")
        return heads(self.receptance(xr)), k, v, self.gate(xg), heads(w)

    def _repeated(self, x: Tensor, name: str) -> Tensor:
        """x [D*Hk, T], each head for the neighbouring heads of r: [D, H, T]"""
        D, H, T = self.sizes.n_embd_head, self.sizes.n_head, x.ne[1]
        Hk = x.ne[0] // D
        if Hk == H:
            return self.sizes.heads(x)
        x = ops.repeat_4d(ops.reshape_4d(x, D, 1, Hk, T), D, H // Hk, Hk, T)
        return ops.reshape_3d(x.named(f"{name}_repeated"), D, H, T)


@dataclass(frozen=True, slots=True)
class TimeMix6:
    """RWKV-6's time mixing."""

    mixed: Inputs6
    first: Tensor  # [D, H]: the bonus of the token itself
    norm: HeadNorm
    output: Linear  # [E, E]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The last columns and the states of heads."""
        return (self.mixed.sizes.state(self.mixed.layer),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s = self.mixed.sizes
        r, k, v, gate, w = self.mixed(x, inputs)

        def run(states: Tensor, spans: Tensor) -> Tensor:
            return ops.rwkv_wkv6(k, v, r, self.first, w, states, spans=spans)

        y = self.norm(scan_states(run, inputs, self.mixed.layer, s), s)  # [E, T]
        gate = ops.silu(gate).named("time_mix_gate_silu")
        return self.output(ops.mul(y, gate).named("time_mix_gated"))


@dataclass(frozen=True, slots=True)
class GatedTimeMix:
    """RWKV-6's time mixing in attention's place: gated linear attention (Yang et al., 2023)."""

    mixed: Inputs6
    output: Linear  # [E, E]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The last columns and the states of heads."""
        return (self.mixed.sizes.state(self.mixed.layer),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s = self.mixed.sizes
        r, k, v, gate, w = self.mixed(x, inputs)
        k = ops.sub(k, ops.mul(k, w).named("k_kept")).named("k_scaled")

        def run(states: Tensor, spans: Tensor) -> Tensor:
            return ops.gated_linear_attn(k, v, r, w, states, s.n_embd_head**-0.5, spans=spans)

        y = scan_states(run, inputs, self.mixed.layer, s)  # [E, T]
        gate = ops.sigmoid(gate).named("time_mix_gate_sigmoid")
        return self.output(ops.mul(y, gate).named("time_mix_gated"))


class Rwkv6(RwkvDecoder):
    """An rwkv6 model. Every few layers the result may be halved, which f16 needed."""

    channel_gated = True

    def time_mix(self, i: int) -> Mixer:
        """With a bonus and a norm of heads."""
        h, weights, s = self.hparams, self.weights, self.sizes
        name, E = f"blk.{i}.time_mix", h.n_embd
        return TimeMix6(
            Inputs6.take(weights, i, h, s, E, biased=False),
            weights.take(f"{name}_first.weight", s.n_embd_head, s.n_head),
            HeadNorm.take(weights, i, E),
            take_plain(weights, f"{name}_output", E, E),
        )

    def layer_scale(self, i: int) -> float:
        """0.5 every few layers."""
        n_halved = self.hparams.keys.whole("rescale_every_n_layers", 0)
        return 0.5 if n_halved and (i + 1) % n_halved == 0 else 1.0


class Rwkv6Qwen2(PreNormDecoder):
    """An rwkv6qwen2 model."""

    ffn_biased = False

    def set_up(self) -> None:
        """The heads."""
        self.sizes = RwkvSizes.read(self.hparams, 1)
        self.hparams.keys.without_effect("rescale_every_n_layers")

    def mixer(self, i: int) -> Mixer:
        """The time mixing of layer i."""
        h, s, E = self.hparams, self.sizes, self.hparams.n_embd
        n_head_kv = h.layers[i].n_head_kv or s.n_head
        if s.n_head % n_head_kv:
            must_be = f"a divisor of {s.n_head} heads"
            raise h.keys.error("attention.head_count_kv", n_head_kv, must_be)
        n_kv = n_head_kv * s.n_embd_head
        return GatedTimeMix(
            Inputs6.take(self.weights, i, h, s, n_kv, biased=True),
            take_plain(self.weights, f"blk.{i}.time_mix_output", E, E),
        )
