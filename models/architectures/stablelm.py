"""StableLM: llama with LayerNorm and partly rotated heads. Stability AI, 2023.

StableLM 2 12B norms the heads of q and k, each with weights of its own, and runs attention and the
feed-forward block in parallel behind one norm.
"""

from __future__ import annotations

from ggmlpy.models.blocks.layers import Layer, ParallelLayer
from ggmlpy.models.pre_norm import PreNormDecoder


class StableLM(PreNormDecoder):
    """A stablelm model."""

    norms = "layer"
    qk_norm = "layer"

    def set_up(self) -> None:
        """Tensors tell which layers are parallel: of those in sequence some files say otherwise."""
        self.hparams.keys.without_effect("use_parallel_residual")

    def layer(self, i: int) -> Layer:
        """In parallel where the file has no norm of the feed-forward block."""
        if self.weights.has(f"blk.{i}.ffn_norm.weight"):
            return super().layer(i)
        return ParallelLayer(
            attn_norm=self.norm(i, "attn_norm"), mixer=self.mixer(i), ffn=self.ffn(i)
        )
