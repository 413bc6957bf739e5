"""LFM2: short convolutions in most layers, attention in some; SwiGLU in all.

Liquid AI, 2025. A convolution layer gates its input by b, convolves each channel over the last K
tokens, and gates the result by c. Its state is the K - 1 columns before the ubatch.

Letters in shapes: E n_embd, K taps, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks import Linear
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.feed_forward import FeedForward
from ggmlpy.models.hparams import read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.layers import SequentialLayer
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.recurrent import convolve
from ggmlpy.models.self_attention import SelfAttention
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Gate, convolve each channel over time, gate again."""

    layer: int
    in_proj: Linear  # [E, 3*E]: b, c, x
    conv: Tensor  # [K, E]
    out_proj: Linear  # [E, E]

    @classmethod
    def take(cls, weights: Weights, layer: int, n_embd: int, n_taps: int) -> ShortConvolution:
        name = f"blk.{layer}.shortconv"
        return cls(
            layer=layer,
            in_proj=Linear.take(weights, f"{name}.in_proj", n_embd, 3 * n_embd, node="in_proj"),
            conv=weights.take(f"{name}.conv.weight", n_taps, n_embd),
            out_proj=Linear.take(weights, f"{name}.out_proj", n_embd, n_embd, node="out_proj"),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The columns before the ubatch."""
        K, E, _, _ = self.conv.ne
        return (LayerState(self.layer, ((K - 1) * E,), K),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        with scope("conv"):
            return self._mix(x, inputs)

    def _mix(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        E, T, _, _ = x.ne
        bcx = self.in_proj(x)  # [3*E, T]
        b, c, x = (
            ops.view_2d(bcx, E, T, bcx.nb[1], part * E * bcx.nb[0]).named(name)
            for part, name in enumerate("bcx")
        )  # [E, T]
        bx = ops.mul(b, x).named("bx")  # [E, T]
        convolved = convolve(bx, self.conv, inputs, self.layer)  # [E, T]
        return self.out_proj(ops.mul(c, convolved).named("gated"))  # [E, T]


class Lfm2(Decoder):
    """A dense lfm2 model."""

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        self.convolutions = [i for i, p in enumerate(h.layers) if p.n_head_kv == 0]
        attention = [p.n_head_kv > 0 for p in h.layers]
        super().__init__(file, h.with_windows(attention), output_norm="token_embd_norm")
        self.n_taps = h.keys.count("shortconv.l_cache")
        if self.n_taps < 2:
            raise h.keys.error("shortconv.l_cache", self.n_taps, "at least 2")
        self.make_layers(self._layer)

    def _layer(self, i: int) -> SequentialLayer:
        return SequentialLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=self._mixer(i),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=FeedForward.take(self.weights, i, self.hparams, scaled=False),
        )

    def _mixer(self, i: int) -> SelfAttention | ShortConvolution:
        h, weights = self.hparams, self.weights
        if i in self.convolutions:
            return ShortConvolution.take(weights, i, h.n_embd, self.n_taps)
        return SelfAttention.take(weights, i, h, self.rope(i, RopeMode.NEOX), qk_norm="rms")
