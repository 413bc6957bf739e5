"""MiniCPM3: latent attention that is not absorbed, scaled embeddings, residuals and logits.

OpenBMB, 2024, with the scales of MiniCPM (Hu et al., 2024).
"""

from __future__ import annotations

import math

from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.blocks.layers import Layer, Mixer, SequentialLayer
from ggmlpy.models.pre_norm import PreNormDecoder

SCALE_EMBD, SCALE_DEPTH, N_EMBD_BASE = 12.0, 1.4, 256  # of the one model there is


class MiniCPM3(PreNormDecoder):
    """A minicpm3 model."""

    embedding_scale = SCALE_EMBD

    def set_up(self) -> None:
        """The scale of logits."""
        self.logit_scale = N_EMBD_BASE / self.hparams.n_embd

    def layer(self, i: int) -> Layer:
        """With scaled residuals."""
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            residual_scale=SCALE_DEPTH / math.sqrt(self.hparams.n_layer),
        )

    def mixer(self, i: int) -> Mixer:
        """Latent attention, by head."""
        return LatentAttention.take(self.weights, i, self.hparams, self.rope(i, self.rope_mode))
