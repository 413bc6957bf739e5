"""DeepSeek-V2, V3 and R1, and what is built on them: latent attention, many small experts.

DeepSeek-AI, 2024. The first layers are dense; the others have experts chosen among groups, and
shared ones. Also Kimi K2, GLM-4.7-Flash, Mistral Large 3 (mistral4), and DeepSeek-OCR's text part,
which has plain attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.experts import Experts, Gating, gating_of, take_router
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.latent_attention import LatentAttention, yarn_scale
from ggmlpy.models.blocks.layers import Mixer, PerToken
from ggmlpy.models.blocks.self_attention import Temperature
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode

GLM_LITE_LAYERS, GLM_LITE_VOCAB = (47, 48), 154_880  # its files do not say that gating is sigmoid


class DeepSeek2(PreNormDecoder):
    """A deepseek2 model."""

    experts_scaled = False  # see FeedForward.take
    default_gating: ClassVar[Gating] = "softmax"
    rope_mode = RopeMode.NORMAL
    temperature: Temperature | None = None
    log_multiplier = 0.0  # of YaRN's factor of the magnitude
    reads_multiplier = True  # `rope.scaling.yarn_log_multiplier`
    reads_temperature = True  # `attention.temperature_*`

    def set_up(self) -> None:
        """What all layers have in common."""
        keys = self.hparams.keys
        if self.reads_multiplier:
            self.log_multiplier = yarn_log_multiplier(self.hparams)
        self.n_dense = keys.whole("leading_dense_block_count", 0)
        if not self.reads_temperature:
            return
        scale = keys.real("attention.temperature_scale", 0.0)
        if scale:
            self.temperature = Temperature(scale, keys.count("attention.temperature_length"))

    def read(self, file: GGUFFile) -> HParams:
        """With the magnitude that YaRN's logarithmic multiplier gives."""
        h = read_hparams(file)
        multiplier = yarn_log_multiplier(h) if self.reads_multiplier else 0.0
        if not multiplier:
            return h
        # V2 has the same multiplier for what is rotated and for all.
        own = multiplier if h.architecture == "deepseek2" and multiplier != 1.0 else 1.0
        return h.replaced(lambda _, p: replace(p, rope=p.rope.with_log_multiplier(own, multiplier)))

    def mixer(self, i: int) -> Mixer:
        """Latent attention."""
        p, rope = self.hparams.layers[i], self.rope(i, self.rope_mode)
        D = p.n_embd_head_k
        if self.weights.has(f"blk.{i}.attn_k_b.weight"):
            D = self.hparams.keys.count("attention.key_length_mla")
        return LatentAttention.take(
            self.weights,
            i,
            self.hparams,
            rope,
            scale=yarn_scale(rope, self.log_multiplier, D),
            temperature=self.temperature,
        )

    def ffn(self, i: int) -> PerToken:
        """Dense in the first layers, then experts."""
        h, weights, keys = self.hparams, self.weights, self.hparams.keys
        if i < self.n_dense:
            return FeedForward.take(weights, i, h, scaled=self.experts_scaled)
        lite = h.n_layer in GLM_LITE_LAYERS and h.n_vocab == GLM_LITE_VOCAB
        router = take_router(
            weights,
            i,
            h,
            gating=gating_of(h, "sigmoid" if lite else self.default_gating),
            normalise=keys.flag("expert_weights_norm", False),
            scale=keys.real("expert_weights_scale", 0.0),
        )
        n_ff = keys.per_layer("expert_feed_forward_length", 0)[i]
        n_shared = n_ff * keys.whole("expert_shared_count", 0)
        return Experts.take(
            weights, i, h, router, n_ff=n_ff, n_ff_shared=n_shared, scaled=self.experts_scaled
        )


class DeepSeek2Ocr(DeepSeek2):
    """A deepseek2-ocr model: attention of all heads, without the scaling of contexts."""

    def mixer(self, i: int) -> Mixer:
        """Plain attention."""
        return PreNormDecoder.mixer(self, i)

    def layer_rope(self, i: int) -> Rope | None:
        """Over pairs (i, i + D/2)."""
        return Rope(self.hparams.layers[i].rope.unscaled(), RopeMode.NEOX)


def yarn_log_multiplier(h: HParams) -> float:
    """The factor of ln(scaling factor) in YaRN's magnitude, of which files hold a tenth."""
    return h.keys.real("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
