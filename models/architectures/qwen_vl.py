"""The text parts of Qwen2-VL (Wang et al., 2024) and Qwen3-VL (2025): qwen2 and qwen3 with M-RoPE.

Images come as embeddings from another model and are not supported. Qwen3-TTS (2026) is the same
with logits of the last tokens only, which are speech.
"""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class Qwen2VL(PreNormDecoder):
    """A qwen2vl model: Qwen2-VL and Qwen2.5-VL."""

    rope_mode = RopeMode.MROPE
    output_biased = False


class Qwen3VL(PreNormDecoder):
    """A dense qwen3vl model."""

    rope_mode = RopeMode.IMROPE
    qk_norm = "rms"

    def set_up(self) -> None:
        """The classifier of a reranker."""
        self.classifier = Classifier.maybe(self.weights, self.hparams, normalise=True)


class Qwen3TTS(Qwen3VL):
    """A qwen3tts model."""

    output_of_some = True

    def logits(self, x: Tensor) -> Tensor:
        """x [E, O], normed -> [V, O]; -inf for tokens without a row in the map."""
        y = super().logits(x)
        n_without = self.hparams.n_vocab - y.ne[0]
        if not n_without:
            return y
        none = ops.fill(ops.arange(0.0, float(n_without), 1.0), float("-inf"))  # [n_without]
        return ops.concat(ops.repeat_4d(none, n_without, y.ne[1], 1, 1), y, 0)
