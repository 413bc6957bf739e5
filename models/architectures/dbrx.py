"""DBRX: LayerNorm, clamped q, k and v, experts in every layer. Databricks, 2024."""

from __future__ import annotations

from ggmlpy.models.expert_decoder import ExpertDecoder


class Dbrx(ExpertDecoder):
    """A dbrx model."""

    norms = "layer"
    ffn_norm_name = "attn_output_norm"
    output_bias = False

    def set_up(self) -> None:
        """What q, k and v are held within; 0 for no limit."""
        self.attn_clamp = self.hparams.keys.real("attention.clamp_kqv")

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size, which the file gives."""
        return self.hparams.layers[i].n_ff
