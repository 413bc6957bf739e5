"""MiniCPM: llama with scaled embeddings, residuals and logits (Hu et al., 2024), dense or with
experts.
"""

from __future__ import annotations

import math

from ggmlpy.models.architectures.granite import GraniteMoE

N_EMBD_BASE = 256  # of the model whose logits are not scaled


class MiniCPM(GraniteMoE):
    """A minicpm model. Scales that the file does not say follow from the sizes."""

    def set_up(self) -> None:
        """The scales."""
        h = self.hparams
        self.embedding_scale = h.keys.real("embedding_scale", 12.0) or 1.0
        depth_scale = 1.4 / math.sqrt(h.n_layer)
        self.residual_scale = h.keys.real("residual_scale", depth_scale) or 1.0
        self.logit_scale = 1.0 / h.keys.positive("logit_scale", N_EMBD_BASE / h.n_embd)

    def n_ff_shared(self, i: int) -> int:
        """None."""
        return 0
