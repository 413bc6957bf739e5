"""Nanbeige: llama whose layers run several times in a row. Nanbeige LLM Lab, 2026.

Each run of a layer keeps K and V of its own. Between the loops the result is normed as before the
logits, unless the file says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.layers import Layer, SequentialLayer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode

MAX_LAYERS = 512  # layers times loops, as in llama.cpp


@dataclass(frozen=True, slots=True)
class LastOfLoop:
    """The last layer of a loop that another one follows, and a norm."""

    layer: SequentialLayer
    norm: Norm  # [E]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """That of the layer."""
        return self.layer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        return self.norm(self.layer(x, inputs, is_last=is_last))


class Nanbeige(PreNormDecoder):
    """A nanbeige model."""

    rope_mode = RopeMode.NORMAL
    ffn_scaled = True

    def set_up(self) -> None:
        """How often the layers run, and whether there are norms between."""
        keys, n = self.hparams.keys, self.hparams.n_layer
        self.n_loops = keys.count("num_loops", 1)
        if n * self.n_loops > MAX_LAYERS:
            must_be = f"at most {MAX_LAYERS // n} with {n} layers"
            raise keys.error("num_loops", self.n_loops, must_be)
        self.loop_norm: Norm | None = None
        if not keys.flag("skip_loop_final_norm", False):
            self.loop_norm = replace(self.output_norm, name="loop_norm")

    def make_layers(self, make: Callable[[int], Layer]) -> None:
        """Each layer once for every loop."""
        once = [self.layer(i) for i in range(self.hparams.n_layer)]
        looped = [
            self._in_loop(layer, i, loop)
            for loop in range(self.n_loops)
            for i, layer in enumerate(once)
        ]
        self.layers = [*looped]
        self.remember(looped)

    def layer(self, i: int) -> SequentialLayer:
        """Layer i of a loop."""
        layer = super().layer(i)
        assert isinstance(layer, SequentialLayer)
        return layer

    def _in_loop(self, layer: SequentialLayer, i: int, loop: int) -> SequentialLayer | LastOfLoop:
        """Layer i with the slot of a loop, and the norm that follows it if any."""
        n, mixer = self.hparams.n_layer, layer.mixer
        assert isinstance(mixer, SelfAttention)
        own = replace(layer, mixer=replace(mixer, layer=i + loop * n))
        is_followed = i == n - 1 and loop < self.n_loops - 1
        return LastOfLoop(own, self.loop_norm) if is_followed and self.loop_norm else own
