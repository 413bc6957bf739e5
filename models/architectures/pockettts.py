"""Pocket TTS: the language model of a speech synthesiser. Kyutai, 2026.

LayerNorm with biases and GELU without a gate. Speech comes from a flow network in another file,
which is not supported: logits are those of the embedding, as llama.cpp has them.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class PocketTTS(PreNormDecoder):
    """A pockettts model."""

    norms = "layer"
    rope_mode = RopeMode.NORMAL
    rope_factored = False
    activation = "gelu"
    output_bias = False
    ffn_biased = False
