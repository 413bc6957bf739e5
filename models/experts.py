"""A mixture of SwiGLU experts: a router selects a few experts for each token.

Source: Shazeer et al., 2017, in Mixtral's form (Jiang et al., 2024): softmax over all experts, then
the weights of the selected ones normalised to a sum of one.

Letters in shapes: E n_embd, F n_ff, X experts, U experts used, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.hparams import HParams
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class ExpertLinear:
    """The linear maps of each token's selected experts: scale * W x."""

    name: str  # of the product's node
    weight: Tensor  # [n_in, n_out, X]
    scale: Tensor | None  # [X]

    @classmethod
    def take(
        cls, weights: Weights, blk: str, name: str, n_in: int, n_out: int, X: int
    ) -> ExpertLinear:
        full = f"{blk}.ffn_{name}_exps"
        weights.without_effect(f"{full}.input_scale")
        weight = weights.take(f"{full}.weight", n_in, n_out, X)
        return cls(f"ffn_moe_{name}", weight, weights.maybe(f"{full}.scale", X))

    def __call__(self, x: Tensor, selected: Tensor) -> Tensor:
        """x [n_in, 1 or U, T], selected [U, T] i32 -> [n_out, U, T]"""
        y = ops.mul_mat_id(self.weight, x, selected).named(self.name)  # [n_out, U, T]
        if self.scale is None:
            return y
        _, U, T, _ = y.ne
        with scope(self.name):
            ids = ops.reshape_1d(ops.cont(selected), U * T)  # [U*T] i32
            scales = ops.get_rows(ops.reshape_2d(self.scale, 1, self.scale.ne[0]), ids)  # [1, U*T]
            scales = ops.reshape_3d(scales, 1, U, T)  # [1, U, T]
        return ops.mul(y, scales).named(f"{self.name}_scaled")  # [n_out, U, T]


@dataclass(frozen=True, slots=True)
class Experts:
    """The router and the feed-forward experts of a layer."""

    router: Tensor  # [E, X]
    gate: ExpertLinear  # [E, F, X]
    up: ExpertLinear  # [E, F, X]
    down: ExpertLinear  # [F, E, X]
    n_used: int

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> Experts:
        blk, E, F, X = f"blk.{layer}", h.n_embd, h.n_ff, h.n_expert
        return cls(
            router=weights.take(f"{blk}.ffn_gate_inp.weight", E, X),
            gate=ExpertLinear.take(weights, blk, "gate", E, F, X),
            up=ExpertLinear.take(weights, blk, "up", E, F, X),
            down=ExpertLinear.take(weights, blk, "down", F, E, X),
            n_used=h.n_expert_used,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """The weighted sum of each token's selected experts: x [E, T] -> [E, T]."""
        E, T, _, _ = x.ne
        X, U = self.router.ne[1], self.n_used
        logits = ops.mul_mat(self.router, x).named("ffn_moe_logits")  # [X, T]
        probs = ops.soft_max(logits).named("ffn_moe_probs")  # [X, T]
        selected = ops.argsort_top_k(probs, U).named("ffn_moe_topk")  # [U, T] i32
        probs = ops.reshape_3d(probs, 1, X, T)  # [1, X, T]
        weights = ops.get_rows(probs, selected).named("ffn_moe_weights")  # [1, U, T]
        weights = ops.reshape_2d(weights, U, T)  # [U, T]
        total = ops.sum_rows(weights).named("ffn_moe_weights_sum")  # [1, T]
        weights = ops.div(weights, total).named("ffn_moe_weights_norm")  # [U, T]
        weights = ops.reshape_3d(weights, 1, U, T)  # [1, U, T]
        x = ops.reshape_3d(x, E, 1, T)  # [E, 1, T]
        h = ops.swiglu_split(self.gate(x, selected), self.up(x, selected))  # [F, U, T]
        out = self.down(h.named("ffn_moe_swiglu"), selected)  # [E, U, T]
        out = ops.mul(out, weights).named("ffn_moe_weighted")  # [E, U, T]
        moe_out = _expert(out, 0)  # [E, T]
        for i in range(1, U):
            moe_out = ops.add(moe_out, _expert(out, i)).named(f"ffn_moe_sum_{i}")
        return (ops.cont(moe_out) if U == 1 else moe_out).named("ffn_moe_out")


def _expert(out: Tensor, i: int) -> Tensor:
    """Slice i of out [E, U, T]: [E, T]."""
    y = ops.view_2d(out, out.ne[0], out.ne[2], out.nb[2], i * out.nb[1])
    return y.named(f"ffn_moe_expert_{i}")
