"""gpt-oss: experts with biases and a clamped SwiGLU, attention with sinks, windows in every other
layer. OpenAI, 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams


class GptOss(ExpertDecoder):
    """A gpt-oss model. The weights of experts are a softmax over those that are selected."""

    ffn_norm_name = "post_attention_norm"
    gating = "softmax_selected"
    normalise = False
    expert_activation = "swiglu_oai"

    def read(self, file: GGUFFile) -> HParams:
        """With windows."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", rope.freq_base)
        return h.with_windows(h.keys.windowed(2), replace(rope, freq_base=base))
