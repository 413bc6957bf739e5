"""Qwen3: RMSNorm of every head of q and k before rope over pairs (i, i + D/2); SwiGLU.

Yang et al., 2025; embeddings and rerankers as in Zhang et al., 2025.
"""

from __future__ import annotations

from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.pre_norm import PreNormDecoder


class Qwen3(PreNormDecoder):
    """A dense qwen3 model."""

    qk_norm = "rms"
    ffn_scaled = True

    def set_up(self) -> None:
        """The classifier of a reranker."""
        self.classifier = Classifier.maybe(self.weights, self.hparams, normalise=True)
