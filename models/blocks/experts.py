"""A mixture of experts: a router selects a few feed-forward networks for each token.

Source: Shazeer et al., 2017; softmax over all experts as in Mixtral (Jiang et al., 2024), sigmoid,
selection bias and groups as in DeepSeek-V3 (2024).

Letters in shapes: E n_embd, F n_ff of an expert, X experts, U experts used, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.adapted import add_lora_id
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.feed_forward import (
    ACTIVATIONS,
    GATED,
    Activation,
    FeedForward,
    activated,
    clamped_swiglu,
)
from ggmlpy.models.hparams import HParams
from ggmlpy.models.weights import Weights

MIN_SUM = 6.103515625e-5  # of a token's weights that are normalised: the least normal f16

Gating = Literal["softmax", "sigmoid", "softmax_selected", "sqrt_softplus"]
_GATING: dict[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "softmax_selected", 4: "sqrt_softplus"}


@dataclass(frozen=True, slots=True)
class ExpertLinear:
    """The linear maps of each token's selected experts: scale * W x + bias."""

    name: str  # of the product's node
    weight: Tensor  # [n_in, n_out, X]
    scale: Tensor | None  # [X]
    bias: Tensor | None  # [n_out, X]

    @classmethod
    def take(
        cls,
        weights: Weights,
        blk: str,
        name: str,
        n_in: int,
        n_out: int,
        X: int,
        *,
        suffix: str = "_exps",
        scaled: bool = True,
    ) -> ExpertLinear:
        """`ffn_{name}{suffix}.weight`, and its scale and bias where the file has them."""
        full = f"{blk}.ffn_{name}{suffix}"
        weights.without_effect(f"{full}.input_scale")
        if not scaled:
            weights.without_effect(f"{full}.scale")
        return cls(
            f"ffn_moe_{name}",
            weights.take(f"{full}.weight", n_in, n_out, X),
            weights.maybe(f"{full}.scale", X) if scaled else None,
            weights.maybe(f"{full}.bias", n_out, X),
        )

    def __call__(self, x: Tensor, selected: Tensor) -> Tensor:
        """x [n_in, 1 or U, T], selected [U, T] i32 -> [n_out, U, T]"""
        y = ops.mul_mat_id(self.weight, x, selected).named(self.name)  # [n_out, U, T]
        if self.scale is not None:
            _, U, T, _ = y.ne
            with scope(self.name):
                ids = ops.reshape_1d(ops.cont(selected), U * T)  # [U*T] i32
                scales = ops.reshape_2d(self.scale, 1, self.scale.ne[0])  # [1, X]
                scales = ops.reshape_3d(ops.get_rows(scales, ids), 1, U, T)  # [1, U, T]
            y = ops.mul(y, scales).named(f"{self.name}_scaled")  # [n_out, U, T]
        y = add_lora_id(y, self.weight, x, selected, self.name)
        if self.bias is not None:
            y = ops.add_id(y, self.bias, selected).named(f"{self.name}_biased")
        return y


@dataclass(frozen=True, slots=True)
class Router:
    """Which experts each token uses, and with what weights."""

    linear: Linear  # [E, X]
    n_used: int
    gating: Gating
    selection_bias: Tensor | None = None  # [X]: added where experts are chosen, not in weights
    n_group: int = 1  # of neighbouring experts; only the best `n_group_used` are chosen from
    n_group_used: int = 1
    normalise: bool = True  # the weights to a sum of one
    scale: float = 1.0
    select_by_logits: bool = False  # as llama4, whose sigmoid comes after the selection

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [E, T] -> the selected experts [U, T] i32, their weights [1, U, T]."""
        logits = self.linear(x)  # [X, T]
        return self.route(logits)

    def route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As `__call__`, of the router's logits [X, T]."""
        probs = self._probabilities(logits)  # [X, T]
        ranked = logits if self.select_by_logits else probs
        if self.selection_bias is not None:
            ranked = ops.add(ranked, self.selection_bias).named("ffn_moe_probs_biased")
        if self.n_group > 1:
            ranked = self._best_groups(ranked)
        selected = ops.argsort_top_k(ranked, self.n_used).named("ffn_moe_topk")  # [U, T] i32
        selected.root.named("ffn_moe_argsort")
        return selected, self.weigh(probs, selected)

    def weigh(self, probs: Tensor, selected: Tensor) -> Tensor:
        """The weights of the selected experts [U, T] i32, of probs [X, T]: [1, U, T]"""
        X, T, U = probs.ne[0], probs.ne[1], selected.ne[0]
        weights = ops.get_rows(ops.reshape_3d(probs, 1, X, T), selected)  # [1, U, T]
        weights = ops.reshape_2d(weights.named("ffn_moe_weights"), U, T)  # [U, T]
        if self.gating == "softmax_selected":
            weights = ops.soft_max(weights).named("ffn_moe_weights_softmax")
        if self.normalise:
            total = ops.sum_rows(weights).named("ffn_moe_weights_sum")  # [1, T]
            total = ops.clamp(total, MIN_SUM, float("inf")).named("ffn_moe_weights_sum_clamped")
            weights = ops.div(weights, total).named("ffn_moe_weights_norm")
        if self.scale not in (0.0, 1.0):
            weights = ops.scale(weights, self.scale).named("ffn_moe_weights_scaled")
        return ops.reshape_3d(weights, 1, U, T)

    def _probabilities(self, logits: Tensor) -> Tensor:
        """logits [X, T] -> [X, T]"""
        if self.gating == "softmax_selected":
            return logits
        if self.gating == "softmax":
            probs = ops.soft_max(logits)
        elif self.gating == "sigmoid":
            probs = ops.sigmoid(logits)
        else:
            probs = ops.sqrt(ops.softplus(logits))
        return probs.named("ffn_moe_probs")

    def _best_groups(self, ranked: Tensor) -> Tensor:
        """ranked [X, T], with -inf outside of the groups whose two best experts sum to most."""
        X, T, G = ranked.ne[0], ranked.ne[1], self.n_group
        groups = ops.reshape_3d(ranked, X // G, G, T)  # [X/G, G, T]
        with scope("ffn_moe_group_best"):
            best = ops.argsort_top_k(groups, 2)  # [2, G, T] i32
            best = ops.get_rows(ops.reshape_4d(groups, 1, X // G, G, T), best)  # [1, 2, G, T]
            scores = ops.sum_rows(ops.reshape_3d(best, 2, G, T))  # [1, G, T]
        with scope("ffn_moe_group"):
            chosen = ops.argsort_top_k(ops.reshape_2d(scores, G, T), self.n_group_used)
            kept = ops.get_rows(groups, chosen.named("topk"))  # [X/G, n_group_used, T]
            masked = ops.set_rows(ops.fill(groups, float("-inf")), kept, chosen)
        return ops.reshape_2d(masked, X, T).named("ffn_moe_probs_masked")


def take_router(
    weights: Weights,
    layer: int,
    h: HParams,
    *,
    gating: Gating = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    select_by_logits: bool = False,
) -> Router:
    """A layer's router. The number of groups is the file's, and so is the selection bias.

    The key `expert_weights_norm` causes a warning where it asks for a norm that there is not. Where
    there is one it causes none: llama.cpp writes false into every file that it saves.
    """
    blk, keys = f"blk.{layer}", h.keys
    bias = f"{blk}.exp_probs_b"  # without a suffix in files of Hunyuan 3
    if not weights.has(bias):
        bias = f"{bias}.bias"
    linear = Linear.take(
        weights, f"{blk}.ffn_gate_inp", h.n_embd, h.n_expert, node="ffn_moe_logits"
    )
    if normalise:
        keys.without_effect("expert_weights_norm")
    else:
        keys.fixed("expert_weights_norm", False)
    n_group = keys.whole("expert_group_count", 0) or 1
    n_group_used = keys.whole("expert_group_used_count", 0) or 1
    if n_group > 1 and (h.n_expert % n_group or h.n_expert // n_group < 2):
        raise keys.error("expert_group_count", n_group, f"a divisor of {h.n_expert} experts")
    if not 1 <= n_group_used <= n_group:
        raise keys.error("expert_group_used_count", n_group_used, f"1 to {n_group}")
    return Router(
        linear=linear,
        n_used=keys.per_layer("expert_used_count", 0)[layer],
        gating=gating,
        selection_bias=weights.maybe(bias, h.n_expert),
        n_group=n_group,
        n_group_used=n_group_used,
        normalise=normalise,
        scale=scale,
        select_by_logits=select_by_logits,
    )


def gating_of(h: HParams, default: Gating | None) -> Gating:
    """What `expert_gating_func` says, or `default` where it is missing or 0.

    Raises WeightError if there is no default.
    """
    found = h.keys.whole("expert_gating_func", 0)
    if default is not None and not found:
        return default
    if found not in _GATING:
        raise h.keys.error("expert_gating_func", found, f"one of {', '.join(map(str, _GATING))}")
    return _GATING[found]


@dataclass(frozen=True, slots=True)
class Experts:
    """The router and the experts of a layer, and those that all tokens share."""

    router: Router
    gate: ExpertLinear | None  # [E, F, X]
    up: ExpertLinear  # [E, F, X]; gate and up in one: [E, 2*F, X], the gate first
    down: ExpertLinear  # [F, E, X]
    activation: Activation = "silu"
    limit: float = 0.0  # see clamped_swiglu
    limit_first: bool = False
    weight_before: bool = False  # weights multiply the experts' input, as in llama4
    glu: Callable[[Tensor, Tensor], Tensor] | None = None  # of gate and up; not by `activation`
    shared: FeedForward | None = None
    shared_gate: Linear | None = None  # [E, 1]: its sigmoid multiplies the shared expert's result

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        router: Router | None = None,
        *,
        activation: Activation = "silu",
        n_ff: int | None = None,
        n_ff_shared: int = 0,
        limit: float = 0.0,
        limit_first: bool = False,
        weight_before: bool = False,
        shared_limit: float = 0.0,
        scaled: bool = True,
    ) -> Experts:
        """A layer's experts of `n_ff`, `expert_feed_forward_length` or else the layer's n_ff; the
        default router normalises the weights of a softmax.

        A shared expert is taken where `n_ff_shared` is not 0. `scaled` as in FeedForward.take.
        """
        blk, E, X, keys = f"blk.{layer}", h.n_embd, h.n_expert, h.keys
        own = keys.per_layer("expert_feed_forward_length", 0)[layer]
        F = n_ff or own or h.layers[layer].n_ff
        if not F:
            raise keys.error("expert_feed_forward_length", 0, "at least 1")
        fused = weights.has(f"{blk}.ffn_gate_up_exps.weight")
        must_be_gated = activation not in ACTIVATIONS
        has_gate = not fused and (must_be_gated or weights.has(f"{blk}.ffn_gate_exps.weight"))
        up = ("gate_up", 2 * F) if fused else ("up", F)
        shared = shared_gate = None
        if n_ff_shared:
            shared = FeedForward.take(
                weights,
                layer,
                h,
                activation,
                suffix="_shexp",
                n_ff=n_ff_shared,
                limit=shared_limit,
                limit_first=limit_first,
                scaled=scaled,
            )
            if weights.has(f"{blk}.ffn_gate_inp_shexp.weight"):
                shared_gate = _take_shared_gate(weights, blk, E)
        take = partial(ExpertLinear.take, weights, blk, scaled=scaled)
        return cls(
            router=take_router(weights, layer, h) if router is None else router,
            gate=take("gate", E, F, X) if has_gate else None,
            up=take(up[0], E, up[1], X),
            down=take("down", F, E, X),
            activation=activation,
            limit=limit,
            limit_first=limit_first,
            weight_before=weight_before,
            shared=shared,
            shared_gate=shared_gate,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """The weighted sum of each token's experts, plus the shared one: x [E, T] -> [E, T]."""
        selected, weights = self.router(x)
        out = self.combine(x, selected, weights)
        if self.shared is None:
            return out
        return ops.add(out, self._shared(x)).named("ffn_out")

    def _shared(self, x: Tensor) -> Tensor:
        assert self.shared is not None
        y = self.shared(x).named("ffn_shexp")
        if self.shared_gate is None:
            return y
        gate = ops.sigmoid(self.shared_gate(x)).named("shared_expert_gate_sigmoid")  # [1, T]
        return ops.mul(y, gate).named("ffn_shexp_gated")

    def combine(self, x: Tensor, selected: Tensor, weights: Tensor) -> Tensor:
        """x [E, T], selected [U, T] i32, weights [1, U, T] -> [E, T]"""
        E, T = x.ne[:2]
        U = selected.ne[0]
        x = ops.reshape_3d(x, E, 1, T)  # [E, 1, T]
        if self.weight_before:
            x = ops.repeat_4d(x, E, U, T, 1).named("ffn_moe_inp_repeated")
            x = ops.mul(x, weights).named("ffn_moe_weighted")
        out = self.down(self._activated(x, selected), selected)  # [E, U, T]
        if not self.weight_before:
            out = ops.mul(out, weights).named("ffn_moe_weighted")  # [E, U, T]
        moe_out = _expert(out, 0)  # [E, T]
        for i in range(1, U):
            moe_out = ops.add(moe_out, _expert(out, i)).named(f"ffn_moe_sum_{i}")
        return (ops.cont(moe_out) if U == 1 else moe_out).named("ffn_moe_out")

    def _activated(self, x: Tensor, selected: Tensor) -> Tensor:
        """x [E, 1 or U, T], selected [U, T] i32 -> [F, U, T]"""
        up = self.up(x, selected)  # [F or 2*F, U, T]
        F = self.down.weight.ne[0]
        gate = None
        if self.gate is not None:
            gate = self.gate(x, selected)  # [F, U, T]
        elif up.ne[0] == 2 * F:
            gate, up = _half(up, F, 0, "ffn_moe_gate"), _half(up, F, F, "ffn_moe_up")
        if gate is None:
            return activated(up, self.activation, "ffn_moe")
        if self.glu is not None:
            with scope("ffn_moe_glu"):
                return self.glu(gate, up)
        if self.limit:
            name = "ffn_moe_swiglu_limited"
            return clamped_swiglu(gate, up, self.limit, name, first=self.limit_first)
        name, gated = GATED[self.activation]
        return gated(gate, up).named(f"ffn_moe_{name}")


def _take_shared_gate(weights: Weights, blk: str, E: int) -> Linear:
    """[E, 1], which files store as [E]."""
    name = f"{blk}.ffn_gate_inp_shexp"
    stored = weights.take(f"{name}.weight", *weights.ne(f"{name}.weight")[:2])
    weight = ops.reshape_2d(stored, E, 1)
    return Linear("shared_expert_gate", weight, None, None)


def _half(x: Tensor, F: int, first: int, name: str) -> Tensor:
    """Elements first .. first + F - 1 of x [2*F, U, T]: [F, U, T]"""
    offset = first * x.type.row_bytes(1)
    return ops.view_3d(x, F, x.ne[1], x.ne[2], x.nb[1], x.nb[2], offset).named(name)


def _expert(out: Tensor, i: int) -> Tensor:
    """Slice i of out [E, U, T]: [E, T]."""
    y = ops.view_2d(out, out.ne[0], out.ne[2], out.nb[2], i * out.nb[1])
    return y.named(f"ffn_moe_expert_{i}")
