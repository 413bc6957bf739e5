"""Gemma 3: norms before and after every block, GeGLU, sliding windows in five layers of six.

Layers with a window have a rope base of their own and no context scaling.
Gemma Team, 2025.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.ops.rope import RopeMode

N_LAYER_27B = 62  # its attention scale is computed from n_embd / n_head, not the head size


class Gemma3(Decoder):
    """A gemma3 model."""

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        h.keys.without_effect("attention.scale")  # llama.cpp writes it and computes it anew
        rope = h.layers[0].rope
        # The attention factor of the file is for all layers, as in llama.cpp.
        swa = replace(
            rope.unscaled(h.keys.positive("rope.freq_base_swa", 10_000.0)),
            attn_factor=rope.attn_factor,
        )
        super().__init__(file, h.with_windows(h.keys.windowed(6), swa))
        self.embedding_scale = math.sqrt(h.n_embd)
        self.softcap = h.keys.real("final_logit_softcapping", 0.0)
        self.make_layers(self._layer)

    def _layer(self, i: int) -> SequentialLayer:
        h, weights = self.hparams, self.weights
        rope, scale = self.rope(i, RopeMode.NEOX), _attention_scale(h, i)
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=SelfAttention.take(weights, i, h, rope, qk_norm="rms", scale=scale),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=FeedForward.take(weights, i, h, "gelu", scaled=False),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
            sum_node="sa_out",
        )


def _attention_scale(h: HParams, layer: int) -> float:
    p = h.layers[layer]
    n = h.n_embd // p.n_head if h.n_layer == N_LAYER_27B else p.n_embd_head_k
    return 1.0 / math.sqrt(n)
