"""Feed-forward blocks of one network for all tokens.

Letters in shapes: E n_embd, F n_ff, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.hparams import HParams
from ggmlpy.models.weights import Weights

Activation = Literal["silu", "gelu", "relu", "relu_sqr", "swiglu_oai"]


def _swiglu_oai(gate: Tensor, up: Tensor) -> Tensor:
    """As in gpt-oss (OpenAI, 2025): limits of 7 and a steeper sigmoid."""
    return ops.swiglu_oai(gate, up, 1.702, 7.0)


ACTIVATIONS: dict[Activation, tuple[str, Callable[[Tensor], Tensor]]] = {
    "silu": ("silu", ops.silu),
    "gelu": ("gelu", ops.gelu),
    "relu": ("relu", ops.relu),
    "relu_sqr": ("relu", ops.relu),  # then squared, see `activated`
}
# (gate, up) -> act(gate) * up; and of both in one tensor, gate first
GATED: dict[Activation, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": ("swiglu", ops.swiglu_split),
    "gelu": ("geglu", ops.geglu_split),
    "relu": ("reglu", ops.reglu_split),
    "swiglu_oai": ("swiglu_oai", _swiglu_oai),
}
FUSED: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": ops.swiglu,
    "gelu": ops.geglu,
    "relu": ops.reglu,
}


def activated(x: Tensor, activation: Activation, name: str) -> Tensor:
    """act(x) of a block without a gate, whose nodes' names begin with `name`."""
    kind, act = ACTIVATIONS[activation]
    y = act(x).named(f"{name}_{kind}")
    if activation != "relu_sqr":
        return y
    # llama.cpp names them so.
    return ops.sqr(y).named("ffn_sqr(relu)" if name == "ffn" else f"{name}_relu_sqr")


def clamped_swiglu(
    gate: Tensor, up: Tensor, limit: float, name: str, *, first: bool = False
) -> Tensor:
    """min(silu(gate), limit) * up held within +-limit; with `first` silu(min(gate, limit)) times
    the same. The result's node has this name."""
    if first:
        return ops.swiglu_clamp(gate, up, limit).named(name)
    with scope(name):
        up = ops.clamp(up, -limit, limit).named("up")
        gate = ops.clamp(ops.silu(gate), float("-inf"), limit).named("gate")
    return ops.mul(gate, up).named(name)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """down(act(gate(x)) * up(x)): SwiGLU and others (Shazeer, 2020); without a gate
    down(act(up(x))).

    Where `up` gives 2 F elements, the first F of them are the gate's.
    """

    gate: Linear | None  # [E, F]
    up: Linear  # [E, F], or [E, 2*F]
    down: Linear  # [F, E]
    activation: Activation
    act_scales: Tensor | None = None  # [F]: divide the activation (AWQ: Lin et al., 2023)
    sub_norm: Norm | None = None  # [F], before down (BitNet: Wang et al., 2023)
    limit: float = 0.0  # see clamped_swiglu
    limit_first: bool = False

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        activation: Activation = "silu",
        *,
        suffix: str = "",
        n_ff: int | None = None,
        scaled: bool = True,
        biased: bool = True,
        limit: float = 0.0,
        limit_first: bool = False,
    ) -> FeedForward:
        """A layer's feed-forward `ffn_{gate,up,down}{suffix}`, of layer's n_ff unless another is
        given. Whether it has a gate, or gate and up in one, is seen in the file.

        `scaled` as in llama.cpp, which applies the scales of some architectures (to the biases too)
        and ignores those of others; so does `biased`, for biases that some leave unused.
        """
        blk, E = f"blk.{layer}", h.n_embd
        F = h.layers[layer].n_ff if n_ff is None else n_ff
        if not F:
            raise h.keys.error("feed_forward_length", 0, f"at least 1 in layer {layer}")
        take = partial(Linear.take, weights, scaled=scaled, biased=biased, bias_first=True)
        name = f"{blk}.ffn_gate{suffix}"
        must_be_gated = activation not in ACTIVATIONS
        has_gate = activation in GATED and weights.has(f"{name}.weight")
        gate = take(name, E, F) if must_be_gated or has_gate else None
        up = f"{blk}.ffn_up{suffix}"
        may_be_fused = gate is None and activation in FUSED and not limit
        fused = (
            may_be_fused and weights.has(f"{up}.weight") and weights.ne(f"{up}.weight")[1] == 2 * F
        )
        return cls(
            gate=gate,
            up=take(up, E, 2 * F if fused else F),
            down=take(f"{blk}.ffn_down{suffix}", F, E),
            activation=activation,
            act_scales=weights.maybe(f"{blk}.ffn.act.scales", F),
            sub_norm=Norm.maybe(weights, f"{blk}.ffn_sub_norm", F, h),
            limit=limit,
            limit_first=limit_first,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        h = self._activated(x)  # [F, T]
        if self.act_scales is not None:
            h = ops.div(h, self.act_scales).named("ffn_act")
        if self.sub_norm is not None:
            h = self.sub_norm(h)
        return self.down(h).named("ffn_out")  # [E, T]

    def _activated(self, x: Tensor) -> Tensor:
        """x [E, T] -> [F, T]"""
        if self.gate is not None and self.limit:
            gate, up = self.gate(x), self.up(x)
            name = "ffn_swiglu_limited"
            return clamped_swiglu(gate, up, self.limit, name, first=self.limit_first)
        if self.gate is not None:
            name, gated = GATED[self.activation]
            return gated(self.gate(x), self.up(x)).named(f"ffn_{name}")
        up = self.up(x)
        if up.ne[0] == 2 * self.down.weight.ne[0]:
            return FUSED[self.activation](up).named(f"ffn_{GATED[self.activation][0]}")
        return activated(up, self.activation, "ffn")
