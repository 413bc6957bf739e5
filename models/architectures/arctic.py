"""Arctic: a dense decoder, and experts in parallel to each of its layers. Snowflake, 2024.

Letters in shapes: E n_embd, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.experts import Experts
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import Mixer, output_rows
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class ArcticLayer:
    """y + ffn(norm(y)) + experts(norm(x)), where y = x + attention(norm(x))."""

    attn_norm: Norm
    mixer: Mixer
    ffn_norm: Norm
    ffn: FeedForward
    experts_norm: Norm
    experts: Experts

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T]; in the last layer [E, O]"""
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
        y = ops.add(h, x).named("ffn_inp")
        dense = ops.add(self.ffn(self.ffn_norm(y)), y).named("ffn_out_added")
        return ops.add(self.experts(self.experts_norm(x)), dense).named("l_out")


class Arctic(ExpertDecoder):
    """An arctic model."""

    rope_mode = RopeMode.NORMAL
    output_bias = False

    def layer(self, i: int) -> ArcticLayer:
        """The dense block is as wide as the embeddings."""
        h, weights = self.hparams, self.weights
        return ArcticLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=FeedForward.take(weights, i, h, n_ff=h.n_embd, scaled=False),
            experts_norm=self.norm(i, "ffn_norm_exps"),
            experts=self.experts(i),
        )

    def n_ff_expert(self, i: int) -> int:
        """Of the size that others give a dense block."""
        return self.hparams.layers[i].n_ff
