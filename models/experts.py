"""A mixture of SwiGLU experts: each token is sent to the few that a router scores highest.

Source: Shazeer et al., 2017, as Mixtral does it (Jiang et al., 2024): softmax over all experts,
then the weights of the chosen ones scaled to a sum of one.

Letters in shapes: E n_embd, F n_ff, X experts, U experts used, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.models.hparams import HParams
from ggmlpy.models.weights import Weights
from ggmlpy.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Experts:
    router: Tensor  # [E, X]
    gate: Tensor  # [E, F, X]
    up: Tensor  # [E, F, X]
    down: Tensor  # [F, E, X]
    n_used: int

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> Experts:
        blk, E, F, X = f"blk.{layer}", h.n_embd, h.n_ff, h.n_expert
        return cls(
            router=weights.take(f"{blk}.ffn_gate_inp.weight", E, X),
            gate=weights.take(f"{blk}.ffn_gate_exps.weight", E, F, X),
            up=weights.take(f"{blk}.ffn_up_exps.weight", E, F, X),
            down=weights.take(f"{blk}.ffn_down_exps.weight", F, E, X),
            n_used=h.n_expert_used,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Each token's chosen experts, weighted and summed: x [E, T] -> [E, T]."""
        E, T, _, _ = x.ne
        X, U = self.router.ne[1], self.n_used
        scores = ops.soft_max(ops.mul_mat(self.router, x).named("router")).named("scores")  # [X, T]
        chosen = ops.argsort_top_k(scores, U).named("chosen")  # [U, T] i32
        weights = ops.get_rows(ops.reshape_3d(scores, 1, X, T), chosen)  # [1, U, T]
        weights = ops.reshape_2d(weights, U, T)  # [U, T]
        weights = ops.div(weights, ops.sum_rows(weights)).named("weights")  # [U, T]
        weights = ops.reshape_3d(weights, 1, U, T)  # [1, U, T]
        x = ops.reshape_3d(x, E, 1, T)  # [E, 1, T]
        gate = ops.mul_mat_id(self.gate, x, chosen).named("gate")  # [F, U, T]
        up = ops.mul_mat_id(self.up, x, chosen).named("up")  # [F, U, T]
        h = ops.swiglu_split(gate, up).named("gated")  # [F, U, T]
        out = ops.mul_mat_id(self.down, h, chosen).named("down")  # [E, U, T]
        out = ops.mul(out, weights).named("weighted")  # [E, U, T]
        total = _expert(out, 0)  # [E, T]
        for i in range(1, U):
            total = ops.add(total, _expert(out, i)).named(f"sum_to_{i}")
        return ops.cont(total) if U == 1 else total


def _expert(out: Tensor, i: int) -> Tensor:
    """Slice i of out [E, U, T]: [E, T]."""
    y = ops.view_2d(out, out.ne[0], out.ne[2], out.nb[2], i * out.nb[1])
    return y.named(f"expert_{i}")
