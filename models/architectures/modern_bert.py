"""Encoders with the blocks of today's decoders: norms before, rotary positions, gated networks.

ModernBERT (Warner et al., 2024) has windows to both sides in two layers of three; NeoBERT (Le
Breton et al., 2025) and EuroBERT (Boizard et al., 2025) are llama without the causal mask.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.common.quoting import quoted
from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.blocks.feed_forward import Activation, FeedForward
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.encoder import Encoder
from ggmlpy.models.hparams import HParams
from ggmlpy.ops.rope import RopeMode

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "geglu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "reglu": "relu",
}


class ModernBert(Encoder):
    """A modern-bert model. Its first layer has no norm before attention."""

    norms = "layer"
    output_bias = False
    rope_factored = False

    def read(self, file: GGUFFile) -> HParams:
        """Layers with a window have a rope base of their own."""
        h = super().read(file)
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", 10_000.0)
        swa = replace(rope.unscaled(base), attn_factor=rope.attn_factor)
        return h.with_windows(h.keys.windowed(3, full_first=True), swa, kind="symmetric")

    def set_up(self) -> None:
        """The norm of embeddings, the activation, the classifier."""
        h, keys = self.hparams, self.hparams.keys
        self.embd_norm = Norm.take(
            self.weights, "token_embd_norm", h.n_embd, h, "layer", node="inp_norm"
        )
        named = keys.text("hidden_activation", "gelu")
        if named not in _ACTIVATIONS:
            must_be = f"one of {', '.join(_ACTIVATIONS)}"
            raise keys.error("hidden_activation", quoted(named), must_be)
        self.ffn_activation = _ACTIVATIONS[named]
        self.classifier = Classifier.maybe(self.weights, h, activation="gelu", of_mean=True)

    def layer(self, i: int) -> SequentialLayer:
        """Layer i."""
        h = self.hparams
        return SequentialLayer(
            attn_norm=Norm.maybe(self.weights, f"blk.{i}.attn_norm", h.n_embd, h, "layer"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=FeedForward.take(self.weights, i, h, self.ffn_activation, scaled=False),
        )


class NeoBert(Encoder):
    """A neo-bert model."""

    rope_mode = RopeMode.NORMAL
    rope_factored = False
    output_norm_name = "enc.output_norm"
    output_bias = False
    ffn_biased = False

    def set_up(self) -> None:
        """The classifier."""
        self.classifier = Classifier.maybe(self.weights, self.hparams)


class EuroBert(Encoder):
    """A eurobert model."""

    rope_factored = False
    output_bias = False
    ffn_biased = False
