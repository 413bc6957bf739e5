"""EXAONE 3 and 4. LG AI Research, 2024 and 2025.

EXAONE 3 is llama with rope over pairs (i, i + D/2). EXAONE 4 norms the results of attention and of
the feed-forward block instead of their inputs, and the heads of q and k; its model of 64 layers has
windows in three layers of four, and no positions in the others.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.memory import Window
from ggmlpy.models.pre_norm import PreNormDecoder

N_LAYER_32B = 64  # the model with windows


class Exaone(PreNormDecoder):
    """An exaone model."""


class Exaone4(PreNormDecoder):
    """An exaone4 model."""

    qk_norm = "rms"

    def read(self, file: GGUFFile) -> HParams:
        """With windows in the largest model."""
        h = read_hparams(file)
        if h.n_layer != N_LAYER_32B:
            h.keys.without_effect("attention.sliding_window")  # as in llama.cpp
            return h
        window = Window(h.keys.count("attention.sliding_window", 4096))
        flags = h.keys.windowed(4)
        return h.replaced(lambda i, p: replace(p, window=window) if flags[i] else p)

    def layer(self, i: int) -> SequentialLayer:
        """With norms of results."""
        return SequentialLayer(
            mixer=self.mixer(i),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
        )

    def layer_rope(self, i: int) -> Rope | None:
        """None in layers with full attention, where others have windows."""
        layers = self.hparams.layers
        windowed = any(p.window is not None for p in layers)
        return super().layer_rope(i) if layers[i].window is not None or not windowed else None


class ExaoneMoE(SharedExpertDecoder):
    """An exaone-moe model: K-EXAONE, with windows in three layers of four and no positions in the
    others; dense layers, then experts as DeepSeek-V3 has them (2026)."""

    qk_norm = "rms"
    output_bias = False
    gating = None

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        return h.with_windows(h.keys.windowed(4))

    def layer_rope(self, i: int) -> Rope | None:
        """None in layers with full attention."""
        return super().layer_rope(i) if self.hparams.layers[i].window is not None else None

    def n_ff_shared(self, i: int) -> int:
        """As the file says, or one expert's size."""
        own = self.hparams.keys.whole("expert_shared_feed_forward_length", 0)
        return own or self.n_ff_expert(i)
