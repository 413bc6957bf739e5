"""Gemma: llama with GeGLU and scaled embeddings (Gemma Team, 2024a).

Gemma 2 (2024b) has norms before and after every block, soft-caps on the scores of attention and on
the logits, and a sliding window in every other layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import POST_NORMS, PreNormDecoder

N_LAYER_27B = 46  # its attention scale is computed from n_embd / n_head, not the head size


class Gemma(PreNormDecoder):
    """A gemma model."""

    activation = "gelu"

    def set_up(self) -> None:
        """The scale of embeddings."""
        self.embedding_scale = math.sqrt(self.hparams.n_embd)


class Gemma2(Gemma):
    """A gemma2 model."""

    post_norms = POST_NORMS

    def read(self, file: GGUFFile) -> HParams:
        """With windows in every other layer."""
        h = read_hparams(file)
        h.keys.without_effect("attention.scale")  # llama.cpp writes it and computes it anew
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        return h.with_windows(h.keys.windowed(2), replace(rope, freq_base=base), default=4096)

    def set_up(self) -> None:
        """Scales and soft-caps."""
        super().set_up()
        h = self.hparams
        self.attn_softcap = h.keys.real("attn_logit_softcapping", 50.0)
        self.softcap = h.keys.real("final_logit_softcapping", 30.0)
        if h.n_layer == N_LAYER_27B:
            self.attn_scale = 1.0 / math.sqrt(h.n_embd // h.layers[0].n_head)
