"""PLaMo, the models of Preferred Networks.

PLaMo (2023) runs attention and the feed-forward block in parallel behind one norm. PLaMo 3 (2025)
has norms before and after every block, norms of the heads of q and k, and windows in seven layers
of eight, whose rotation has a base of its own and is not scaled for longer contexts.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.layers import ParallelLayer
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import POST_NORMS, PreNormDecoder


class Plamo(PreNormDecoder):
    """A plamo model."""

    def layer(self, i: int) -> ParallelLayer:
        """With one norm."""
        return ParallelLayer(
            attn_norm=self.norm(i, "attn_norm"), mixer=self.mixer(i), ffn=self.ffn(i)
        )


class Plamo3(PreNormDecoder):
    """A plamo3 model."""

    post_norms = POST_NORMS
    qk_norm = "rms"
    qkv_scaled = False

    def read(self, file: GGUFFile) -> HParams:
        """With windows where the file has them."""
        h = read_hparams(file)
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", 10_000.0)
        swa = replace(rope.unscaled(base), attn_factor=rope.attn_factor)
        return h.with_windows(h.keys.windowed(8), swa)

    def post_norm(self, i: int, name: str, part: int) -> Norm:
        """In files the names of its weights have no suffix."""
        h = self.hparams
        weight = self.weights.take(f"blk.{i}.{name}", h.n_embd)
        return replace(Norm.plain(POST_NORMS[part], h), weight=weight)
