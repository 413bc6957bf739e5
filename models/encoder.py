"""Encoders: models whose tokens attend to all tokens of their text, and whose graph gives
embeddings.

Letters in shapes: E n_embd, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.pre_norm import PreNormDecoder


class Encoder(PreNormDecoder):
    """Layers like those of decoders, without causal attention and logits."""

    can_generate = False
    has_logits = False

    def read(self, file: GGUFFile) -> HParams:
        """Not causal, whatever the file says."""
        return replace(read_hparams(file), is_causal=False)

    def build(self, inputs: GraphInputs) -> Tensor:
        """The embeddings [E, O] of the tokens that are output."""
        return self.embeddings(inputs)
