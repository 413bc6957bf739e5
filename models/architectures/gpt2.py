"""GPT-2 and its kin: LayerNorm with biases, learned positions, GELU, q, k and v in one map.

GPT-2 (Radford et al., 2019); StarCoder (Li et al., 2023), whose heads share one K and V.
"""

from __future__ import annotations

from ggmlpy.models.pre_norm import PreNormDecoder


class GPT2(PreNormDecoder):
    """A gpt2 or starcoder model."""

    norms = "layer"
    activation = "gelu"
    rotary = False

    def set_up(self) -> None:
        """The embeddings of positions."""
        self.take_positions()
