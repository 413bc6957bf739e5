"""RWKV-7 "Goose" (Peng et al., 2025), and its time mixing in Qwen2 (ARWKV: Yueyu et al., 2025).

A generalised delta rule: the state of a head forgets what it holds of a key at a rate a for each
channel. v comes partly from the first layer's. Maps of low rank give a, the decay w, that part of
v, and the gate.

Letters in shapes: E n_embd, D head size, H heads, T tokens.
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

PARTS = "rwkvag"  # what a token is mixed for, in the order of fused weights
_FIRST_VALUE = "value of the first layer"
_MAX_LOG_DECAY = 0.606531  # exp(-1/2): a state keeps at least exp(-exp(-1/2)) of itself
_UNIT_EPS = 1e-12


@dataclass(frozen=True, slots=True)
class TimeMix7:
    """RWKV-7's time mixing."""

    layer: int
    sizes: RwkvSizes
    lerps: tuple[Tensor, ...]  # [E] each: for PARTS, or all but the gate
    receptance: Linear  # [E, E]
    key: Linear  # [E, E]
    value: Linear  # [E, E]
    output: Linear  # [E, E]
    decay: LowRank
    rate: LowRank
    from_first: LowRank | None  # None in the first layer
    gate: LowRank | None
    k_k: Tensor  # [E]
    k_a: Tensor  # [E]
    r_k: Tensor  # [E]
    norm: HeadNorm | None

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        sizes: RwkvSizes,
        *,
        gated: bool,
        normed: bool,
    ) -> TimeMix7:
        """A layer's `time_mix_*`."""
        name, E, keys = f"blk.{layer}.time_mix", h.n_embd, h.keys
        receptance, key, value, output = (
            take_plain(weights, f"{name}_{part}", E, E)
            for part in ("receptance", "key", "value", "output")
        )

        def low_rank(part: str, rank: str, *, biased: bool = True) -> LowRank:
            L = keys.count(f"attention.{rank}_lora_rank")
            return LowRank(
                f"time_mix_{part}",
                weights.take(f"{name}_{part}1.weight", E, L),
                weights.take(f"{name}_{part}2.weight", L, E),
                weights.take(f"{name}_{part}0.weight", E) if biased else None,
                {"w": ops.tanh, "g": ops.sigmoid}.get(part),
            )

        if layer == 0:
            for i in range(3):
                weights.without_effect(f"{name}_v{i}.weight")
        parts = PARTS if gated else PARTS[:-1]
        fused = weights.take(f"{name}_lerp_fused.weight", E, 1, 1, len(parts))
        return cls(
            layer=layer,
            sizes=sizes,
            lerps=parts_of(fused, E, parts),
            receptance=receptance,
            key=key,
            value=value,
            output=output,
            decay=low_rank("w", "decay"),
            rate=low_rank("a", "iclr"),
            from_first=low_rank("v", "value_residual_mix") if layer else None,
            gate=low_rank("g", "gate", biased=False) if gated else None,
            k_k=weights.take(f"{name}_k_k.weight", E),
            k_a=weights.take(f"{name}_k_a.weight", E),
            r_k=weights.take(f"{name}_r_k.weight", E),
            norm=HeadNorm.take(weights, layer, E) if normed else None,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The last columns and the states of heads."""
        return (self.sizes.state(self.layer),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s, heads = self.sizes, self.sizes.heads
        shift = token_shift(x, inputs, self.layer, TIME_SHIFT)
        xr, xw, xk, xv, xa, *xg = (
            lerp(x, shift, weight, f"x{PARTS[i]}") for i, weight in enumerate(self.lerps)
        )  # [E, T]
        r, k, v = self.receptance(xr), self.key(xk), self._with_first(self.value(xv), xv, inputs)
        with scope("decay"):
            w = ops.exp(ops.scale(ops.sigmoid(self.decay(xw)), -_MAX_LOG_DECAY))
        a = ops.sigmoid(self.rate(xa)).named("rate")
        with scope("key_removed"):
            removed = ops.l2_norm(heads(ops.mul(k, self.k_k)), _UNIT_EPS)  # [D, H, T]
            negative = ops.neg(removed)
        with scope("key_replaced"):
            ka = ops.mul(k, self.k_a).named("ka")
            k = ops.add(k, ops.sub(ops.mul(a, ka), ka))
        r, w, k, v, a = heads(r), heads(w), heads(k), heads(v), heads(a)  # [D, H, T]
        learned = ops.mul(removed, a).named("key_learned")

        def run(states: Tensor, spans: Tensor) -> Tensor:
            return ops.rwkv_wkv7(r, w, k, v, negative, learned, states, spans=spans)

        y = scan_states(run, inputs, self.layer, s)  # [E, T]
        if self.norm is not None:
            y = self.norm(y, s)
        with scope("bonus"):
            by_head = ops.reshape_2d(self.r_k, s.n_embd_head, s.n_head)
            kr = ops.mul(ops.mul(k, r).named("kr"), by_head).named("kr_weighted")
            bonus = ops.mul(v, ops.sum_rows(kr))  # [D, H, T]
        y = ops.add(y, s.joined(bonus)).named("time_mix_sum")
        if self.gate is not None:
            y = ops.mul(y, self.gate(xg[0])).named("time_mix_gated")
        return self.output(y)

    def _with_first(self, v: Tensor, xv: Tensor, inputs: GraphInputs) -> Tensor:
        """v [E, T], moved towards that of the first layer."""
        if self.from_first is None:
            inputs.handed_on[_FIRST_VALUE] = v
            return v
        part = self.from_first(xv)
        with scope("value_residual"):
            difference = ops.sub(inputs.handed_on[_FIRST_VALUE], v)
            return ops.add(v, ops.mul(difference, ops.sigmoid(part)))


class Rwkv7(RwkvDecoder):
    """An rwkv7 model."""

    def time_mix(self, i: int) -> Mixer:
        """With gates and a norm of heads."""
        return TimeMix7.take(self.weights, i, self.hparams, self.sizes, gated=True, normed=True)


class ARwkv7(PreNormDecoder):
    """An arwkv7 model. It need not have gates and norms of heads."""

    ffn_biased = False

    def set_up(self) -> None:
        """The heads."""
        self.sizes = RwkvSizes.read(self.hparams, 1)

    def mixer(self, i: int) -> Mixer:
        """The time mixing of layer i."""
        weights, name = self.weights, f"blk.{i}.time_mix"
        gated, normed = (
            all(weights.has(f"{name}_{part}") for part in parts)
            for parts in (("g1.weight", "g2.weight"), ("ln.weight", "ln.bias"))
        )
        return TimeMix7.take(weights, i, self.hparams, self.sizes, gated=gated, normed=normed)
