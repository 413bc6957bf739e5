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
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.recurrent import convolve
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.models.weights import Weights


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


class Lfm2(PreNormDecoder):
    """A dense lfm2 model."""

    output_norm_name = "token_embd_norm"
    qk_norm = "rms"

    def read(self, file: GGUFFile) -> HParams:
        """With windows in the layers with attention, if the file names one."""
        h = read_hparams(file)
        return h.with_windows([p.n_head_kv > 0 for p in h.layers])

    def set_up(self) -> None:
        """The taps of convolutions."""
        keys = self.hparams.keys
        keys.without_effect("leading_dense_block_count")  # all layers are dense
        self.n_taps = keys.count("shortconv.l_cache")
        if self.n_taps < 2:
            raise keys.error("shortconv.l_cache", self.n_taps, "at least 2")

    def mixer(self, i: int) -> Mixer:
        """A convolution in layers without K/V heads."""
        h = self.hparams
        if h.layers[i].n_head_kv:
            return super().mixer(i)
        return ShortConvolution.take(self.weights, i, h.n_embd, self.n_taps)


class Lfm2MoE(Lfm2, ExpertDecoder):
    """An lfm2moe model: dense layers first, then experts with a selection bias."""

    gating = None

    def read(self, file: GGUFFile) -> HParams:
        """Without windows."""
        return read_hparams(file)

    def set_up(self) -> None:
        """The dense layers."""
        super().set_up()
        self.take_dense_layers()
