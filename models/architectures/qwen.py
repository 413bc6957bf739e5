"""Qwen: llama with a bias of q, k and v, which are one map. Bai et al., 2023.

The feed-forward size in its files is that of gate and up together.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder


class Qwen(PreNormDecoder):
    """A qwen model."""

    def read(self, file: GGUFFile) -> HParams:
        """With the size of gate and up each."""
        return read_hparams(file).replaced(lambda _, p: replace(p, n_ff=p.n_ff // 2))
