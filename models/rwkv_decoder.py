"""RWKV models: LayerNorm, and layers of time mixing and channel mixing."""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.layers import Layer, Mixer
from ggmlpy.models.blocks.rwkv import ChannelMix, RwkvLayer, RwkvSizes
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import read_hparams


class RwkvDecoder(Decoder):
    """A subclass makes the time mixing of a layer."""

    channel_gated = False  # see ChannelMix

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        super().__init__(file, h, norm="layer")
        self.embd_norm = Norm.take(self.weights, "token_embd_norm", h.n_embd, h, "layer")
        self.sizes = RwkvSizes.read(h, 2)
        self.make_layers(self.layer)

    def layer(self, i: int) -> Layer:
        """Layer i."""
        return RwkvLayer(
            i,
            self.norm(i, "attn_norm"),
            self.time_mix(i),
            self.norm(i, "attn_norm_2", node="ffn_norm"),
            ChannelMix.take(self.weights, i, self.hparams, gated=self.channel_gated),
            scale=self.layer_scale(i),
        )

    def time_mix(self, i: int) -> Mixer:
        """The time mixing of layer i."""
        raise NotImplementedError

    def layer_scale(self, i: int) -> float:
        """What the result of layer i is multiplied by."""
        return 1.0
