"""GroveMoE: experts, and a small adjugate one for each group of them (Wu et al., 2025).

As in llama.cpp the adjugate experts read the result of the others, and take their weights from the
probabilities of the first experts.

Letters in shapes: E n_embd, G groups, X experts, U experts used, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.experts import ExpertLinear, Experts
from ggmlpy.models.blocks.layers import PerToken
from ggmlpy.models.expert_decoder import ExpertDecoder


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """experts(x) + scale * adjugate(experts(x))"""

    experts: Experts
    adjugate: Experts  # of G experts; its router selects among X
    n_per_group: int
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        logits = self.experts.router.linear(x)  # [X, T]
        y = self.experts.combine(x, *self._select(logits, 1))  # [E, T]
        with scope("adjugate"):
            selected, weights = self._select(logits, self.n_per_group)
            added = self.adjugate.combine(y, selected, weights)  # [E, T]
        added = ops.scale(added, self.scale).named("ffn_adj_scaled")
        return ops.add(y, added).named("ffn_adj_out")

    def _select(self, logits: Tensor, n_per_group: int) -> tuple[Tensor, Tensor]:
        """logits [X, T] -> the groups of n_per_group in which the best experts are [U, T] i32, and
        their weights [1, U, T]."""
        router, G = self.experts.router, logits.ne[0] // n_per_group
        ranked = ops.sigmoid(logits).named("ffn_moe_probs_biased")  # [X, T]
        selected = ops.argsort_top_k(ranked, min(router.n_used, G)).named("ffn_moe_topk")  # [U, T]
        selected.root.named("ffn_moe_argsort")
        if n_per_group > 1:
            groups = ops.scale(ops.cast(selected, "f32"), 1.0 / n_per_group)
            selected = ops.cast(groups, "i32").named("ffn_moe_groups")
        probs = ops.soft_max(logits).named("ffn_moe_probs")  # [X, T]
        return selected, router.weigh(probs, selected)


class GroveMoE(ExpertDecoder):
    """A grovemoe model."""

    qk_norm = "rms"

    def ffn(self, i: int) -> PerToken:
        """With the adjugate experts."""
        h, experts = self.hparams, self.experts(i)
        n = h.keys.count("experts_per_group")
        if h.n_expert % n:
            raise h.keys.error("experts_per_group", n, f"a divisor of {h.n_expert} experts")
        F = h.keys.whole("expert_chunk_feed_forward_length", 0) or h.layers[i].n_embd_head_k
        E, G = h.n_embd, h.n_expert // n
        take = partial(
            ExpertLinear.take, self.weights, f"blk.{i}", X=G, suffix="_chexps", scaled=False
        )
        adjugate = replace(
            experts, gate=take("gate", E, F), up=take("up", E, F), down=take("down", F, E)
        )
        return GroupedExperts(experts, adjugate, n, h.keys.real("expert_group_scale"))
