"""PLM: latent attention without absorption, and squared ReLU without a gate. Deng et al., 2025."""

from __future__ import annotations

from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class PLM(PreNormDecoder):
    """A plm model."""

    rope_mode = RopeMode.NORMAL
    activation = "relu_sqr"

    def mixer(self, i: int) -> LatentAttention:
        """Latent attention. As in llama.cpp only the map back has a scale."""
        return LatentAttention.take(self.weights, i, self.hparams, self.layer_rope(i), scaled=False)
