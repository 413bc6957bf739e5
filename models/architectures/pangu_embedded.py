"""openPangu-Embedded: llama with biases in attention. Huawei, 2025."""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class PanguEmbedded(PreNormDecoder):
    """A pangu-embedded model."""

    rope_factored = False
