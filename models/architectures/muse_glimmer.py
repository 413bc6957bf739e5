"""Muse Glimmer: gated attention, norms before and after every block, windows in most layers.

Layers without a window have no positions. Embeddings are normed, norms of results have an epsilon
of their own, and logits are scaled and soft-capped.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm, Rope
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode

POST_NORM_EPS = 1e-8


class MuseGlimmer(PreNormDecoder):
    """A muse-glimmer model."""

    rope_mode = RopeMode.NORMAL
    qk_norm = "rms"
    attn_gate = "attn_gate"

    def read(self, file: GGUFFile) -> HParams:
        """With windows, whose rotation is not scaled for longer contexts."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # the file must have it
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        swa = replace(rope.unscaled(base), attn_factor=rope.attn_factor)
        return h.with_windows(h.keys.windowed(4), swa)

    def set_up(self) -> None:
        """The norm of embeddings, the scale and the soft-cap of logits."""
        h = self.hparams
        self.embd_norm = Norm.plain("inp_norm", h)
        self.logit_scale = h.keys.real("logit_scale")
        self.softcap = h.keys.real("final_logit_softcapping", 30.0)

    def layer(self, i: int) -> SequentialLayer:
        """With norms of inputs and of results."""
        attn_post = self.norm(i, "post_attention_norm", node="attn_post_norm")
        ffn_post = self.norm(i, "post_ffw_norm", node="ffn_post_norm")
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            attn_post_norm=replace(attn_post, eps=POST_NORM_EPS),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=replace(ffn_post, eps=POST_NORM_EPS),
        )

    def layer_rope(self, i: int) -> Rope | None:
        """None in layers without a window."""
        return super().layer_rope(i) if self.hparams.layers[i].window is not None else None
