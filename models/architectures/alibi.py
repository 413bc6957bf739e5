"""Decoders whose scores fall with the distance of tokens: ALiBi (Press et al., 2021).

BLOOM (BigScience, 2022) norms its embeddings. MPT (MosaicML, 2023) may clamp q, k and v, norm q and
k, or have learned positions. Jais (Sengupta et al., 2023) has SwiGLU, and scores of q k^T / D.
Refact (2023) is llama with ALiBi in place of rotation, and so is Baichuan 13B (Yang et al., 2023),
while Baichuan 7B is llama.
"""

from __future__ import annotations

from ggmlpy.errors import Unsupported
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode

MAX_BIAS = 8.0  # where no key says another
N_LAYER_BAICHUAN_7B, N_LAYER_BAICHUAN_13B = 32, 40


class Bloom(PreNormDecoder):
    """A bloom model."""

    norms = "layer"
    activation = "gelu"
    rotary = False
    max_bias = MAX_BIAS

    def set_up(self) -> None:
        """The norm of embeddings."""
        h = self.hparams
        h.keys.fixed("attention.max_alibi_bias", MAX_BIAS)
        self.embd_norm = Norm.take(self.weights, "token_embd_norm", h.n_embd, h, "layer")


class MPT(PreNormDecoder):
    """An mpt model."""

    norms = "layer"
    qk_norm = "layer"
    activation = "gelu"
    rotary = False

    def set_up(self) -> None:
        """What the file says of positions and clamps."""
        keys = self.hparams.keys
        self.attn_clamp = keys.real("attention.clamp_kqv", 0.0)
        self.max_bias = keys.real("attention.max_alibi_bias", 0.0)
        if self.weights.has("position_embd.weight"):
            self.take_positions()


class Jais(PreNormDecoder):
    """A jais model."""

    norms = "layer"
    rotary = False

    def set_up(self) -> None:
        """The slope and the scale of scores."""
        h = self.hparams
        self.max_bias = h.keys.real("attention.max_alibi_bias", 0.0)
        self.attn_scale = 1.0 / h.layers[0].n_embd_head_v


class Refact(PreNormDecoder):
    """A refact model. As in llama.cpp biases of its maps have no effect."""

    rotary = False
    rope_factored = False
    output_bias = False
    ffn_biased = False
    max_bias = MAX_BIAS

    def set_up(self) -> None:
        """Raises Unsupported for experts, whose weights llama.cpp loads and does not use."""
        h = self.hparams
        h.keys.fixed("attention.max_alibi_bias", MAX_BIAS)
        if h.n_expert:
            raise Unsupported(
                f"{h.keys.file}: refact with experts is not supported: llama.cpp, which defines it,"
                " does not use their weights"
            )


class Baichuan(PreNormDecoder):
    """A baichuan model. Its size is told by the number of layers, as in llama.cpp: another number
    than those of 7B and 13B has neither rotation nor ALiBi."""

    rope_mode = RopeMode.NORMAL

    def set_up(self) -> None:
        """Positions by the size."""
        self.rotary = self.hparams.n_layer == N_LAYER_BAICHUAN_7B
        self.max_bias = MAX_BIAS if self.hparams.n_layer == N_LAYER_BAICHUAN_13B else 0.0
