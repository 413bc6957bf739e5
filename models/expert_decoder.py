"""Decoders with experts: like llama, with a mixture in place of the feed-forward block.

What architectures differ in is how the router weighs experts, which layers are dense, and whether
there are experts that all tokens share. Those are attributes and methods of their class.
"""

from __future__ import annotations

from typing import ClassVar

from ggmlpy.models.blocks.experts import Experts, Gating, Router, gating_of, take_router
from ggmlpy.models.blocks.feed_forward import Activation
from ggmlpy.models.blocks.layers import PerToken
from ggmlpy.models.pre_norm import PreNormDecoder

MIN_LIMIT = 1e-6  # of activations; less stands for none


class ExpertDecoder(PreNormDecoder):
    """x + attention(norm(x)), then x + experts(norm(x)), or a dense block in some layers."""

    gating: ClassVar[Gating | None] = "softmax"  # None: the file must say
    gating_from_file = False  # `expert_gating_func`, where it is not 0
    normalise: bool | None = True  # weights to a sum of one; None: as the file says, or not
    weights_scaled = False  # by `expert_weights_scale`
    expert_activation: ClassVar[Activation] = "silu"
    experts_scaled = False  # see FeedForward.take
    limited = False  # activations, see `expert_limit`
    n_dense = 0  # layers before those with experts

    def take_dense_layers(self) -> None:
        """Set the number of dense layers that the file says, 0 if it does not."""
        self.n_dense = self.hparams.keys.whole("leading_dense_block_count", 0)

    def is_dense(self, i: int) -> bool:
        """Whether layer i has no experts."""
        return i < self.n_dense

    def ffn(self, i: int) -> PerToken:
        """Experts, or a dense block."""
        return super().ffn(i) if self.is_dense(i) else self.experts(i)

    def ffn_limit(self, i: int) -> float:
        """That of shared experts."""
        return self.shared_limit(i)

    def experts(self, i: int) -> Experts:
        """The experts of layer i."""
        if not self.hparams.n_expert:
            raise self.hparams.keys.error("expert_count", 0, "at least 1")
        return Experts.take(
            self.weights,
            i,
            self.hparams,
            self.router(i),
            activation=self.expert_activation,
            n_ff=self.n_ff_expert(i),
            n_ff_shared=self.n_ff_shared(i),
            limit=self.expert_limit(i),
            limit_first=self.limit_first,
            shared_limit=self.shared_limit(i),
            scaled=self.experts_scaled,
        )

    def router(self, i: int) -> Router:
        """The router of layer i."""
        h, keys = self.hparams, self.hparams.keys
        gating = self.gating
        if gating is None or self.gating_from_file:
            gating = gating_of(h, gating)
        normalise = self.normalise
        if normalise is None:
            normalise = keys.flag("expert_weights_norm", False)
        scale = keys.real("expert_weights_scale", 0.0) if self.weights_scaled else 0.0
        return take_router(self.weights, i, h, gating=gating, normalise=normalise, scale=scale)

    def n_ff_expert(self, i: int) -> int:
        """The size of an expert: `expert_feed_forward_length`, or a share of a dense block's."""
        h = self.hparams
        own = h.keys.per_layer("expert_feed_forward_length", 0)[i]
        return own or h.layers[i].n_ff // max(1, h.n_expert_used)

    def n_ff_shared(self, i: int) -> int:
        """The size of the experts that all tokens share; 0 if there are none."""
        return 0

    def expert_limit(self, i: int) -> float:
        """The limit of the activation of layer i's experts, see `clamped_swiglu`; 0 for none."""
        return self._limit("swiglu_clamp_exp", i) if self.limited else 0.0

    def shared_limit(self, i: int) -> float:
        """The same for shared experts and dense blocks."""
        return self._limit("swiglu_clamp_shexp", i) if self.limited else 0.0

    def _limit(self, key: str, i: int) -> float:
        limit = self.hparams.keys.reals(key, 0.0)[i]
        return limit if limit > MIN_LIMIT else 0.0


class SharedExpertDecoder(ExpertDecoder):
    """A decoder with dense layers first, then experts of which `expert_shared_count` are shared."""

    normalise: bool | None = None
    weights_scaled = True

    def set_up(self) -> None:
        """The dense layers."""
        self.take_dense_layers()

    def n_ff_shared(self, i: int) -> int:
        """As many experts as the file says, side by side."""
        return self.n_ff_expert(i) * self.hparams.keys.whole("expert_shared_count", 0)
