"""SmallThinker: experts with ReGLU, selected by what comes into the layer. Song et al., 2025.

The router reads the layer's input, so that experts can be fetched while attention runs. Three
layers of four have windows; the first of each four has no positions.

Letters in shapes: E n_embd, X experts, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Norm, Rope
from ggmlpy.models.blocks.experts import Experts
from ggmlpy.models.blocks.layers import Mixer, output_rows
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, Window

N_WINDOW = 4096  # whatever the file says
NO_ROPE_STEP = 4


@dataclass(frozen=True, slots=True)
class EarlyRouterLayer:
    """A layer whose router reads its input."""

    attn_norm: Norm
    mixer: Mixer
    ffn_norm: Norm
    experts: Experts

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T]; in the last layer [E, O]"""
        logits = self.experts.router.linear(x)  # [X, T]
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h, logits = output_rows(inputs, x, h, logits)  # [E, O], [X, O]
        x = ops.add(h, x).named("ffn_inp")
        selected, weights = self.experts.router.route(logits)
        out = self.experts.combine(self.ffn_norm(x), selected, weights)
        return ops.add(out, x).named("l_out")


class SmallThinker(ExpertDecoder):
    """A smallthinker model."""

    expert_activation = "relu"
    gating = None

    def read(self, file: GGUFFile) -> HParams:
        """With windows, if the file names one."""
        h = read_hparams(file)
        keys = h.keys
        if not keys.whole("attention.sliding_window", 0):
            return h
        base = keys.positive("rope.freq_base_swa", h.layers[0].rope.freq_base)
        window, flags = Window(N_WINDOW), keys.windowed(4, full_first=True)
        return h.replaced(
            lambda i, p: (
                replace(p, window=window, rope=replace(p.rope, freq_base=base)) if flags[i] else p
            )
        )

    def layer(self, i: int) -> EarlyRouterLayer:
        """With the router first."""
        return EarlyRouterLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self.mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            experts=self.experts(i),
        )

    def layer_rope(self, i: int) -> Rope | None:
        """None in the first of each four layers, of files with windows and more than four."""
        h = self.hparams
        windows = h.keys.whole("attention.sliding_window", 0) > 0
        without = windows and h.n_layer != NO_ROPE_STEP and i % NO_ROPE_STEP == 0
        return None if without else super().layer_rope(i)
