"""Mamba (Gu and Dao, 2023), Mamba-2 (Dao and Gu, 2024), Falcon Mamba: state-space layers alone."""

from __future__ import annotations

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.layers import Mixer, SequentialLayer
from ggmlpy.models.blocks.state_space import Mamba, Mamba2
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import read_hparams


class MambaModel(Decoder):
    """A mamba model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        self.make_layers(
            lambda i: SequentialLayer(
                mixer=self.mixer(i), ffn=None, attn_norm=self.norm(i, "attn_norm")
            )
        )

    def mixer(self, i: int) -> Mixer:
        """The state-space layer i."""
        return Mamba.take(self.weights, i, self.hparams)


class Mamba2Model(MambaModel):
    """A mamba2 model."""

    def mixer(self, i: int) -> Mixer:
        """The state-space layer i."""
        return Mamba2.take(self.weights, i, self.hparams)
