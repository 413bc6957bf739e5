"""RWKV-6 "Finch" (Peng et al., 2024), and its time mixing in Qwen2 (QRWKV6: Recursal AI, 2024).

The proportions in which a token is mixed with the one before depend on the token, by maps of low
rank; so does the decay w of the state. In Qwen2's attention's place k is scaled by 1 - w, which
needs no bonus for the token itself and no norm of heads.

Letters in shapes: E n_embd, D head size, H heads, Hk of k and v, M and L ranks, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.layers import Layer, Mixer
from ggmlpy.models.blocks.recurrent import load_states, recurrent_of, scanned
from ggmlpy.models.blocks.rwkv import (
    TIME_SHIFT,
    WKV,
    ChannelMix,
    HeadNorm,
    LowRank,
    RwkvLayer,
    RwkvSizes,
    lerp,
    parts_of,
    take_plain,
    token_shift,
)
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.pre_norm import PreNormDecoder
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
            else parts_of(fused, E),
        )

    def __call__(self, x: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        """x and shift [E, T] -> five times [E, T]"""
        M, E, n, _ = self.ups.ne
        ranks = ops.tanh(ops.mul_mat(self.down, lerp(x, shift, self.lerp_x)))  # [5*M, T]
        mixed = []
        for i in range(n):
            up = ops.view_2d(self.ups, M, E, self.ups.nb[1], i * self.ups.nb[2])
            rank = ops.view_2d(ranks, M, x.ne[1], ranks.nb[1], i * M * ranks.nb[0])
            weight = ops.add(ops.mul_mat(up, rank), self.lerps[i])  # [E, T]
            mixed.append(lerp(x, shift, weight).named(f"x{PARTS[i]}"))
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
        w = ops.exp(ops.neg(ops.exp(self.decay(xw)))).named("time_mix_decay")
        k, v = self._repeated(self.key(xk)), self._repeated(self.value(xv))
        return heads(self.receptance(xr)), k, v, self.gate(xg), heads(w)

    def _repeated(self, x: Tensor) -> Tensor:
        """x [D*Hk, T], each head for the neighbouring heads of r: [D, H, T]"""
        D, H, T = self.sizes.n_embd_head, self.sizes.n_head, x.ne[1]
        Hk = x.ne[0] // D
        if Hk == H:
            return self.sizes.heads(x)
        x = ops.repeat_4d(ops.reshape_4d(x, D, 1, Hk, T), D, H // Hk, Hk, T)
        return ops.reshape_3d(x, D, H, T)


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
        s, layer = self.mixed.sizes, self.mixed.layer
        r, k, v, gate, w = self.mixed(x, inputs)
        states = load_states(inputs, layer, WKV, s.n_embd_head * x.ne[0])
        spans = recurrent_of(inputs).spans
        y = ops.rwkv_wkv6(k, v, r, self.first, w, states, spans=spans).named("wkv")
        y = self.norm(scanned(y, x.ne[0], inputs, layer, WKV), s)
        return self.output(ops.mul(y, ops.silu(gate)))


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
        s, layer = self.mixed.sizes, self.mixed.layer
        r, k, v, gate, w = self.mixed(x, inputs)
        k = ops.sub(k, ops.mul(k, w))
        states = load_states(inputs, layer, WKV, s.n_embd_head * x.ne[0])
        spans, scale = recurrent_of(inputs).spans, s.n_embd_head**-0.5
        y = ops.gated_linear_attn(k, v, r, w, states, scale, spans=spans).named("wkv")
        y = scanned(y, x.ne[0], inputs, layer, WKV)
        return self.output(ops.mul(y, ops.sigmoid(gate)))


class Rwkv6(Decoder):
    """An rwkv6 model. Every few layers the result may be halved, which f16 needed."""

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        super().__init__(file, h, norm="layer")
        self.embd_norm = Norm.take(self.weights, "token_embd_norm", h.n_embd, h, "layer")
        self.sizes = RwkvSizes.read(h, 2)
        self.n_halved = h.keys.whole("rescale_every_n_layers", 0)
        self.make_layers(self.layer)

    def layer(self, i: int) -> Layer:
        """Layer i."""
        h, weights, s = self.hparams, self.weights, self.sizes
        name, E = f"blk.{i}.time_mix", self.hparams.n_embd
        time_mix = TimeMix6(
            Inputs6.take(weights, i, h, s, E, biased=False),
            weights.take(f"{name}_first.weight", s.n_embd_head, s.n_head),
            HeadNorm.take(weights, i, E),
            take_plain(weights, f"{name}_output", E, E),
        )
        is_halved = self.n_halved and (i + 1) % self.n_halved == 0
        return RwkvLayer(
            i,
            self.norm(i, "attn_norm"),
            time_mix,
            self.norm(i, "attn_norm_2", node="ffn_norm"),
            ChannelMix.take(weights, i, h, gated=True),
            scale=0.5 if is_halved else 1.0,
        )


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
