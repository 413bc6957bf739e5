"""What RWKV models share: token shifts, maps of low rank, the states of heads and their norms.

RWKV mixes each token with the one before it, in a proportion for each channel, before it maps them
to r, w, k and v; the state of a head is a matrix that decays from token to token.

Letters in shapes: E n_embd, D head size, H heads (E = D*H), L rank, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.layers import Mixer, output_rows
from ggmlpy.models.blocks.recurrent import (
    load_states,
    previous_columns,
    recurrent_of,
    scanned,
)
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.weights import Weights

# A layer's state leaves. The last is of layers whose channel mixing has a shift.
TIME_SHIFT, WKV, CHANNEL_SHIFT = 0, 1, 2
_HEAD_NORM_EPS = 64e-5

# Maps without what llama.cpp leaves unused in these architectures.
take_plain = partial(Linear.take, scaled=False, biased=False)


@dataclass(frozen=True, slots=True)
class RwkvSizes:
    """Heads, and how many parts of a layer have a token shift."""

    n_head: int  # H
    n_embd_head: int  # D
    n_shift: int

    @classmethod
    def read(cls, h: HParams, n_shift: int) -> RwkvSizes:
        """Raises WeightError for sizes that do not fit, or for another number of shifts."""
        keys, E = h.keys, h.n_embd
        D = keys.count("wkv.head_size")
        if E % D:
            raise keys.error("wkv.head_size", D, f"a divisor of {E}, the embedding_length")
        found = keys.count("token_shift_count", 2)
        if found != n_shift:
            raise keys.error("token_shift_count", found, str(n_shift))
        return cls(E // D, D, n_shift)

    def state(self, layer: int) -> LayerState:
        """What a layer keeps: the last columns, and D x D elements a head."""
        E, D = self.n_head * self.n_embd_head, self.n_embd_head
        return LayerState(layer, (E, D * E, E)[: self.n_shift + 1], 2)

    def heads(self, x: Tensor) -> Tensor:
        """x [E, T] -> [D, H, T]"""
        return ops.reshape_3d(x, self.n_embd_head, self.n_head, x.ne[1])

    def joined(self, x: Tensor) -> Tensor:
        """x [D, H, T] -> [E, T]"""
        return ops.reshape_2d(x, self.n_embd_head * self.n_head, x.ne[2])


def token_shift(x: Tensor, inputs: GraphInputs, layer: int, i: int) -> Tensor:
    """The column before each one, less that one: x [E, T] -> [E, T]"""
    with scope("channel_shift" if i == CHANNEL_SHIFT else "time_shift"):
        return ops.sub(previous_columns(x, inputs, layer, i), x).named("token_shift")


def lerp(x: Tensor, shift: Tensor, weight: Tensor, name: str) -> Tensor:
    """x + weight * shift: x and shift [E, T], weight [E] or [E, T] -> [E, T]"""
    return ops.add(ops.mul(shift, weight).named(f"{name}_shift"), x).named(name)


def parts_of(fused: Tensor, E: int, names: str) -> tuple[Tensor, ...]:
    """The rows [E] of a weight whose last dimension counts them, one for each letter of `names`."""
    return tuple(
        ops.view_1d(fused, E, i * fused.nb[3]).named(f"{fused.name}.{name}")
        for i, name in enumerate(names)
    )


def scan_states(
    run: Callable[[Tensor, Tensor], Tensor],
    inputs: GraphInputs,
    layer: int,
    sizes: RwkvSizes,
) -> Tensor:
    """What `run` makes of the states of heads and the `spans` of sequences: [E, T]. The layer gets
    the new states."""
    E = sizes.n_embd_head * sizes.n_head
    with scope("wkv"):
        states = load_states(inputs, layer, WKV, sizes.n_embd_head * E)
        y = run(states, recurrent_of(inputs).spans).named("scan")
        return scanned(y, E, inputs, layer, WKV)


@dataclass(frozen=True, slots=True)
class LowRank:
    """bias + up(activation(down(x)))."""

    name: str  # before those of its nodes
    down: Tensor  # [E, L]
    up: Tensor  # [L, E]
    bias: Tensor | None  # [E]
    activation: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        with scope(self.name):
            y = ops.mul_mat(self.down, x).named("down")  # [L, T]
            if self.activation is not None:
                y = self.activation(y)
            y = ops.mul_mat(self.up, y).named("up")  # [E, T]
            return y if self.bias is None else ops.add(y, self.bias)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """LayerNorm of each head, then one weight and bias for all channels."""

    weight: Tensor  # [E]
    bias: Tensor  # [E]

    @classmethod
    def take(cls, weights: Weights, layer: int, E: int) -> HeadNorm:
        """A layer's `time_mix_ln`."""
        name = f"blk.{layer}.time_mix_ln"
        return cls(weights.take(f"{name}.weight", E), weights.take(f"{name}.bias", E))

    def __call__(self, x: Tensor, sizes: RwkvSizes) -> Tensor:
        """x [E, T] -> [E, T]"""
        with scope("time_mix_ln"):
            y = sizes.joined(ops.norm(sizes.heads(x), _HEAD_NORM_EPS))
            return ops.add(ops.mul(y, self.weight), self.bias)


@dataclass(frozen=True, slots=True)
class ChannelMix:
    """value(relu(key(x))^2) of tokens mixed with the ones before; RWKV-6 gates it by r."""

    key: Linear  # [E, F]
    value: Linear  # [F, E]
    lerp_k: Tensor  # [E]
    receptance: Linear | None  # [E, E]
    lerp_r: Tensor | None  # [E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams, *, gated: bool) -> ChannelMix:
        """A layer's `channel_mix_*`."""
        name, E, F = f"blk.{layer}.channel_mix", h.n_embd, h.layers[0].n_ff
        if not F:
            raise h.keys.error("feed_forward_length", 0, "at least 1")
        return cls(
            take_plain(weights, f"{name}_key", E, F),
            take_plain(weights, f"{name}_value", F, E),
            weights.take(f"{name}_lerp_k.weight", E),
            take_plain(weights, f"{name}_receptance", E, E) if gated else None,
            weights.take(f"{name}_lerp_r.weight", E) if gated else None,
        )

    def __call__(self, x: Tensor, shift: Tensor) -> Tensor:
        """x and shift [E, T] -> [E, T]"""
        with scope("channel_mix"):
            xk = lerp(x, shift, self.lerp_k, "xk")  # [E, T]
            k = ops.sqr(ops.relu(self.key(xk)))  # [F, T]
            y = self.value(k)  # [E, T]
            if self.receptance is None or self.lerp_r is None:
                return y
            xr = lerp(x, shift, self.lerp_r, "xr")  # [E, T]
            return ops.mul(ops.sigmoid(self.receptance(xr)), y)


@dataclass(frozen=True, slots=True)
class RwkvLayer:
    """x + time_mix(norm(x)), then x + channel_mix(norm(x))."""

    layer: int
    attn_norm: Norm  # [E]
    time_mix: Mixer
    ffn_norm: Norm  # [E]
    channel_mix: ChannelMix
    scale: float = 1.0  # of the result

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The last columns and the states of heads."""
        return self.time_mix.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        x = ops.add(self.time_mix(self.attn_norm(x), inputs), x).named("ffn_inp")  # [E, T]
        normed = self.ffn_norm(x)
        shift = token_shift(normed, inputs, self.layer, CHANNEL_SHIFT)
        if is_last:
            x, normed, shift = output_rows(inputs, x, normed, shift)  # [E, O]
        x = ops.add(self.channel_mix(normed, shift).named("ffn_out"), x)
        if self.scale != 1.0:
            x = ops.scale(x.named("ffn_residual"), self.scale)
        return x.named("l_out")
