"""Kimi Linear: Kimi Delta Attention in most layers, latent attention without positions in some.

Kimi Team, Moonshot AI, 2025. The first layers are dense, the others have experts and a shared one.
BailingMoE 3 (Ling 3; Ant Group, 2026) has positions in its latent attention, whose result is gated
per head, a bound for the decay of the delta net, and limits for the activations of experts.
"""

from __future__ import annotations

from ggmlpy.errors import Unsupported
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.kimi_delta import Decay, KimiDelta, read_decay
from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.expert_decoder import SharedExpertDecoder
from ggmlpy.models.hparams import has_mrope
from ggmlpy.ops.rope import RopeMode


class KimiLinear(SharedExpertDecoder):
    """A kimi-linear model. Layers without K/V heads are delta nets."""

    gating = None
    normalise: bool | None = True
    output_scaled = True  # the map back of latent attention, see Linear
    rotary = False
    output_biased = False

    def mixer(self, i: int) -> Mixer:
        """A delta net or latent attention."""
        h, weights = self.hparams, self.weights
        if not h.layers[i].n_head_kv:
            return KimiDelta.take(weights, i, h, self.decay())
        return LatentAttention.take(
            weights, i, h, self.layer_rope(i), scaled=False, output_scaled=self.output_scaled
        )

    def decay(self) -> Decay:
        """How states decay."""
        return Decay()

    def n_ff_shared(self, i: int) -> int:
        """At least one expert, also where the file counts none."""
        return self.n_ff_expert(i) * max(1, self.hparams.keys.whole("expert_shared_count", 0))


class BailingMoE3(KimiLinear):
    """A bailingmoe3 model."""

    normalise = None
    output_scaled = False
    rotary = True
    rope_factored = False
    limited = True

    def set_up(self) -> None:
        """Dense layers; M-RoPE in files with its sections."""
        super().set_up()
        self.rope_mode = RopeMode.MROPE if has_mrope(self.hparams.keys) else RopeMode.NORMAL

    def decay(self) -> Decay:
        """Bounded. Raises Unsupported for a file without a bound."""
        keys = self.hparams.keys
        if not keys.flag("kda.safe_gate", True) or not keys.has("kda.gate_lower_bound"):
            raise Unsupported(f"{keys.file}: a bailingmoe3 model whose decay has no bound")
        return read_decay(keys, positive=True)

    def n_ff_shared(self, i: int) -> int:
        """Shared experts may have a size of their own."""
        own = self.hparams.keys.whole("expert_shared_feed_forward_length", 0)
        return own or super().n_ff_shared(i)

    def layer_rope(self, i: int) -> Rope:
        """Of the part of q and k that all heads share."""
        return self.rope(i, self.rope_mode)
