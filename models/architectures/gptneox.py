"""GPT-NeoX: partly rotated heads, LayerNorm, and usually both blocks of a layer in parallel.

Black et al., 2022; also Pythia, Dolly, RedPajama and the first StableLM.
"""

from __future__ import annotations

from ggmlpy.models.blocks.layers import Layer, ParallelLayer
from ggmlpy.models.pre_norm import PreNormDecoder


class GPTNeoX(PreNormDecoder):
    """A gptneox model."""

    norms = "layer"
    activation = "gelu"

    def set_up(self) -> None:
        """Whether the blocks of a layer are parallel."""
        keys = self.hparams.keys
        if not keys.has("use_parallel_residual"):
            raise keys.error("use_parallel_residual", "missing", "true or false")
        self.is_parallel = keys.flag("use_parallel_residual", True)

    def layer(self, i: int) -> Layer:
        """In parallel, each block with its norm, or in sequence."""
        if not self.is_parallel:
            return super().layer(i)
        return ParallelLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn=self.ffn(i),
            ffn_norm=self.norm(i, "ffn_norm"),
        )
