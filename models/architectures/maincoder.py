"""Maincoder: llama whose heads of q and k are normed after they are rotated. Maincode, 2025."""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Maincoder(PreNormDecoder):
    """A maincoder model."""

    rope_mode = RopeMode.NORMAL
    qk_norm = "rms"
    norm_last = True
