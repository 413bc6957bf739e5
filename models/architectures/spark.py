"""Spark 2.5: GeGLU, a gate for each head of attention, windows in the layers that the file lists.

iFlytek, 2026. Layers with a window may have another base of rotation, and each layer its own
number of heads.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder


class Spark25(PreNormDecoder):
    """A spark2_5 model."""

    activation = "gelu"
    attn_gate = "attn_gate"

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # the file must have it
        if not h.keys.has("attention.sliding_window_pattern"):
            must_be = "a flag for each layer"
            raise h.keys.error("attention.sliding_window_pattern", "missing", must_be)
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        return h.with_windows(h.keys.windowed(0), replace(rope, freq_base=base))
