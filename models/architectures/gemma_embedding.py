"""EmbeddingGemma: Gemma 3 whose tokens attend to all tokens of their text, with windows to both
sides. Embeddings pass two linear maps, where the file has them: before pooling, which gives the
same as after it, because it is linear too.

Schechter Vera et al., 2025.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.encoder import Encoder
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs


class GemmaEmbedding(Encoder):
    """A gemma-embedding model."""

    qk_norm = "rms"
    output_bias = False
    rope_factored = False

    def read(self, file: GGUFFile) -> HParams:
        """Layers with a window have a rope base of their own and no context scaling."""
        h = super().read(file)
        h.keys.without_effect("attention.scale")  # llama.cpp writes it and computes it anew
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", 10_000.0)
        swa = replace(rope.unscaled(base), attn_factor=rope.attn_factor)
        return h.with_windows(h.keys.windowed(6), swa, kind="symmetric")

    def set_up(self) -> None:
        """The scale of embeddings, the maps after the last norm."""
        self.embedding_scale = math.sqrt(self.hparams.n_embd)
        self.weights.without_effect("output.weight")
        self.hparams.keys.without_effect("final_logit_softcapping")
        self.dense = self._dense()

    def layer(self, i: int) -> SequentialLayer:
        """Layer i."""
        h, weights = self.hparams, self.weights
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=FeedForward.take(weights, i, h, "gelu", scaled=False, biased=False),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
            sum_node="sa_out",
        )

    def _dense(self) -> list[Linear]:
        """The dense modules of sentence-transformers, which the file may have."""
        h, weights = self.hparams, self.weights
        take = partial(Linear.take, weights, scaled=False, biased=False)
        maps = []
        if weights.has("dense_2.weight"):
            maps.append(take("dense_2", h.n_embd, h.keys.count("dense_2_feat_out")))
        if weights.has("dense_3.weight"):
            maps.append(take("dense_3", h.keys.count("dense_3_feat_in"), h.n_embd))
        return maps

    def embeddings(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output, normed and mapped: [E, O]"""
        x = super().embeddings(inputs)
        for linear in self.dense:
            x = linear(x)
        return x.named("result_embd")
