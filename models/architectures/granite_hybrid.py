"""Granite 4 hybrid: granite with Mamba-2 in most layers; attention, mostly without positions, in
some; experts with a shared one. IBM, 2025.
"""

from __future__ import annotations

from ggmlpy.models.architectures.granite import Granite
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.state_space import Mamba2


class GraniteHybrid(Granite):
    """A granitehybrid model."""

    default_logit_scale = 0.0

    def mixer(self, i: int) -> Mixer:
        """Mamba-2 in layers without K/V heads."""
        h = self.hparams
        return super().mixer(i) if h.layers[i].n_head_kv else Mamba2.take(self.weights, i, h)
