"""Bailing, the architecture of Ling and Ring: small experts beside shared ones. Ant Group, 2025.

The second version has dense layers first, norms of the heads of q and k, and experts chosen among
groups with a selection bias.
"""

from __future__ import annotations

import math

from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.ops.rope import RopeMode


class BailingMoE(SharedExpertDecoder):
    """A bailingmoe model: experts in all layers."""

    rope_mode = RopeMode.NORMAL

    def set_up(self) -> None:
        """The scale of attention."""
        self.hparams.keys.without_effect("leading_dense_block_count")
        self.attn_scale = 1.0 / math.sqrt(self.hparams.layers[0].rope.n_dims)


class BailingMoE2(SharedExpertDecoder):
    """A bailingmoe2 model."""

    qk_norm = "rms"
    gating = None

    def n_ff_shared(self, i: int) -> int:
        """Shared experts may have a size of their own."""
        keys = self.hparams.keys
        own = keys.whole("expert_shared_feed_forward_length", 0) or self.n_ff_expert(i)
        return own * keys.whole("expert_shared_count", 0)
