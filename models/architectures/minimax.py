"""MiniMax-M2: experts weighed by a sigmoid, with a selection bias; norms over all heads of q and k;
partial rope. MiniMax, 2025.
"""

from __future__ import annotations

from ggmlpy.models.expert_decoder import ExpertDecoder


class MiniMaxM2(ExpertDecoder):
    """A minimax-m2 model."""

    qk_norm = "rms"
    output_bias = False
    gating = None

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size, which the file gives."""
        return self.hparams.layers[i].n_ff
