"""Decoders like llama: a norm before attention and one before the feed-forward block, or also
behind them.

Most architectures are this with a few options, which are attributes of their class.
"""

from __future__ import annotations

from typing import ClassVar

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm, NormKind, Rope
from ggmlpy.models.blocks.feed_forward import Activation, FeedForward
from ggmlpy.models.blocks.layers import Layer, Mixer, PerToken, SequentialLayer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode

POST_NORMS = ("attn_post_norm", "ffn_post_norm")


class PreNormDecoder(Decoder):
    """x + attention(norm(x)), then x + ffn(norm(x)), in every layer.

    A subclass sets what differs, or overrides the method that makes that part.
    """

    norms: NormKind = "rms"  # "rms", or "layer" with the mean taken off
    attn_norm_name = "attn_norm"  # tensors of the norms before attention and feed-forward
    ffn_norm_name = "ffn_norm"
    output_norm_name: ClassVar[str | None] = "output_norm"  # None: without weights
    post_norms: ClassVar[tuple[str, str] | None] = None  # nodes of those of results, if they are
    rope_mode = RopeMode.NEOX
    rotary = True  # False: q and k are not rotated
    attn_scale: float | None = None  # None: 1 / sqrt(D)
    attn_clamp = 0.0  # q, k and v lie between -clamp and clamp; 0: anywhere
    attn_softcap = 0.0  # softcap * tanh(s / softcap) of the scores s; 0: none
    max_bias = 0.0  # of ALiBi; 0: none
    attn_gate: ClassVar[str | None] = None  # tensor of the gate on what attention gives
    qk_norm: ClassVar[NormKind | None] = None  # of q and k, see SelfAttention
    output_bias = True  # see SelfAttention.take
    qkv_scaled = True
    norm_last = False  # q and k are normed after they are rotated
    activation: ClassVar[Activation] = "silu"
    ffn_scaled = False  # see FeedForward.take
    ffn_biased = True
    limit_first = False  # of activations, see `clamped_swiglu`

    def __init__(
        self, file: GGUFFile, *, hparams: HParams | None = None, weights: Weights | None = None
    ) -> None:
        """`hparams` are those that `read` gives, unless told. `weights` are those of a model of
        which this is a part."""
        super().__init__(
            file,
            self.read(file) if hparams is None else hparams,
            output_norm=self.output_norm_name,
            norm=self.norms,
            weights=weights,
        )
        self.set_up()
        self.make_layers(self.layer)
        if self.norm_last and self.qk_norm is not None:
            self.fixed_by = "the model norms keys after it rotates them"

    def read(self, file: GGUFFile) -> HParams:
        """The hyper-parameters."""
        return read_hparams(file)

    def set_up(self) -> None:
        """Set attributes that the layers need, such as the scale of embeddings."""

    def layer(self, i: int) -> Layer:
        """Layer i."""
        return SequentialLayer(
            attn_norm=self.norm(i, self.attn_norm_name, node="attn_norm"),
            mixer=self.mixer(i),
            attn_post_norm=self.post_norm(i, "post_attention_norm", 0),
            ffn_norm=self.norm(i, self.ffn_norm_name, node="ffn_norm"),
            ffn=self.ffn(i),
            ffn_post_norm=self.post_norm(i, "post_ffw_norm", 1),
        )

    def post_norm(self, i: int, name: str, part: int) -> Norm | None:
        """The norm of a result of layer i: of the mixer (part 0) or the feed-forward block (1)."""
        return None if self.post_norms is None else self.norm(i, name, node=self.post_norms[part])

    def mixer(self, i: int) -> Mixer:
        """The attention of layer i."""
        return SelfAttention.take(
            self.weights,
            i,
            self.hparams,
            self.layer_rope(i),
            scale=self.attn_scale,
            qk_norm=self.qk_norm,
            norm_last=self.norm_last,
            clamp=self.attn_clamp,
            softcap=self.attn_softcap,
            max_bias=self.max_bias,
            gate=self.attn_gate,
            output_bias=self.output_bias,
            qkv_scaled=self.qkv_scaled,
        )

    def layer_rope(self, i: int) -> Rope | None:
        """The rotary embedding of layer i; None if it has none."""
        return self.rope(i, self.rope_mode) if self.rotary else None

    def ffn(self, i: int) -> PerToken:
        """The feed-forward block of layer i."""
        return FeedForward.take(
            self.weights,
            i,
            self.hparams,
            self.activation,
            scaled=self.ffn_scaled,
            biased=self.ffn_biased,
            limit=self.ffn_limit(i),
            limit_first=self.limit_first,
        )

    def ffn_limit(self, i: int) -> float:
        """The limit of the activation of layer i's block, see `clamped_swiglu`; 0 for none."""
        return 0.0
