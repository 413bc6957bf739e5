"""LFM2: short convolutions in most layers, attention in some; SwiGLU in all.

Liquid AI, 2025. A convolution layer gates its input by b, convolves each channel over the last K
tokens, and gates the result by c. Its state is the K - 1 columns before the ubatch.

Letters in shapes: E n_embd, K taps, T tokens; for one segment Tg tokens of S sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.attention import joined
from ggmlpy.models.blocks import FeedForward, Linear, Norm, Rope, SelfAttention
from ggmlpy.models.decoder import Decoder, PreNormLayer
from ggmlpy.models.hparams import Keys, attention_layers, read_hparams
from ggmlpy.models.inputs import GraphInputs, RecurrentSegment
from ggmlpy.models.memory import AttentionLayers, Memory, RecurrentLayers
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

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        with scope("conv"):
            return self._mix(x, inputs)

    def _mix(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        assert inputs.recurrent is not None
        E, T, _, _ = x.ne
        bcx = self.in_proj(x)  # [3*E, T]
        b, c, x = (
            ops.view_2d(bcx, E, T, bcx.nb[1], part * E * bcx.nb[0]).named(name)
            for part, name in enumerate("bcx")
        )  # [E, T]
        bx = ops.mul(b, x).named("bx")  # [E, T]
        before = inputs.recurrent.load(self.layer).named("state_before")  # [(K-1)*E, sequences]
        outs, states = [], []
        for i, segment in enumerate(inputs.recurrent.segments):
            with scope(f"segment_{i}" if len(inputs.recurrent.segments) > 1 else ""):
                out, state = self._convolve(bx, before, segment)
            outs.append(out)
            states.append(state)
        states_after = joined(states, "state_after")  # [(K-1)*E, sequences]
        inputs.write(inputs.recurrent.store(self.layer, states_after).named("state_stored"))
        convolved = joined(outs, "conv_out")  # [E, T]
        return self.out_proj(ops.mul(c, convolved).named("gated"))  # [E, T]

    def _convolve(
        self, bx: Tensor, before: Tensor, segment: RecurrentSegment
    ) -> tuple[Tensor, Tensor]:
        """One segment's outputs [E, Tg] and the states after it [(K-1)*E, S]."""
        K, E, _, _ = self.conv.ne
        Tg, S = segment.n_tokens, segment.n_seqs
        steps = Tg // S
        new = ops.view_3d(
            bx, E, steps, S, bx.nb[1], steps * bx.nb[1], segment.first_token * bx.nb[1]
        ).named("new")  # [E, Tg/S, S]
        old = ops.view_3d(
            before, K - 1, E, S, (K - 1) * before.nb[0], before.nb[1],
            segment.first_sequence * before.nb[1],
        ).named("old")  # [K-1, E, S]  # fmt: skip
        x = ops.concat(old, ops.permute(new, 1, 0, 2, 3), 0).named("columns")  # [K-1 + Tg/S, E, S]
        out = ops.ssm_conv(x, self.conv).named("conv")  # [E, Tg/S, S]
        last = ops.view_3d(x, K - 1, E, S, x.nb[1], x.nb[2], steps * x.nb[0])  # [K-1, E, S]
        return ops.reshape_2d(out, E, Tg), ops.cont_2d(last, (K - 1) * E, S)


class Lfm2(Decoder):
    """A dense lfm2 model."""

    def __init__(self, file: GGUFFile) -> None:
        hparams = read_hparams(file, attention_in_some_layers=True)
        super().__init__(file, hparams, output_norm="token_embd_norm")
        h, keys = self.hparams, Keys(file)
        n_head_kv = keys.per_layer("attention.head_count_kv") or []
        self.convolutions = [i for i, n in enumerate(n_head_kv) if n == 0]
        self.n_taps = keys.count("shortconv.l_cache")
        if self.n_taps < 2:
            raise keys.error("shortconv.l_cache", self.n_taps, "at least 2")
        self.memory = self._memory(keys.whole("attention.sliding_window", 0) or None)
        self.layers = [self._layer(i) for i in range(h.n_layer)]

    def _memory(self, window: int | None) -> Memory:
        h = self.hparams
        attention = [i for i in range(h.n_layer) if i not in self.convolutions]
        groups: list[AttentionLayers | RecurrentLayers] = [attention_layers(h, attention, window)]
        if self.convolutions:
            n_embd_r = (self.n_taps - 1) * h.n_embd
            groups.append(RecurrentLayers(tuple(self.convolutions), n_embd_r))
        return tuple(groups)

    def _layer(self, i: int) -> PreNormLayer:
        h, weights = self.hparams, self.weights
        return PreNormLayer(
            attn_norm=Norm.take(weights, f"blk.{i}.attn_norm", h.n_embd, h),
            mixer=self._mixer(i),
            ffn_norm=Norm.take(weights, f"blk.{i}.ffn_norm", h.n_embd, h),
            ffn=FeedForward.take(weights, i, h, scaled=False),
        )

    def _mixer(self, i: int) -> SelfAttention | ShortConvolution:
        h, weights = self.hparams, self.weights
        if i in self.convolutions:
            return ShortConvolution.take(weights, i, h.n_embd, self.n_taps)
        return SelfAttention.take(weights, i, h, Rope(h.rope, RopeMode.NEOX), qk_norm=True)
