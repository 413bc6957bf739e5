"""LFM2: short convolutions in most layers, attention in some; SwiGLU in all.

Liquid AI, 2025. A convolution layer gates its input by b, convolves each channel over the last K
tokens, and gates the result by c. Of past tokens it needs the K - 1 columns before: its state.

Letters in shapes: E n_embd, K taps, V n_vocab, T tokens, O outputs wanted; for one run Tg tokens
of S sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from ggmlpy import ops
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.models.batch import Run, UBatch
from ggmlpy.models.blocks import FeedForward, Linear, Norm, Rotation, SelfAttention
from ggmlpy.models.hparams import Keys, attention_layers, read_hparams
from ggmlpy.models.memory import AttentionLayers, Memory, RecurrentLayers
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode
from ggmlpy.tensor import Tensor, scope


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
            in_proj=Linear.take(weights, f"{name}.in_proj", n_embd, 3 * n_embd),
            conv=weights.take(f"{name}.conv.weight", n_taps, n_embd),
            out_proj=Linear.take(weights, f"{name}.out_proj", n_embd, n_embd),
        )

    def __call__(self, x: Tensor, ubatch: UBatch) -> Tensor:
        """x [E, T] -> [E, T]"""
        assert ubatch.recurrent is not None
        E, T, _, _ = x.ne
        bcx = self.in_proj(x).named("bcx")  # [3*E, T]
        b, c, x = (
            ops.view_2d(bcx, E, T, bcx.nb[1], part * E * bcx.nb[0]) for part in range(3)
        )  # [E, T]
        bx = ops.mul(b, x)  # [E, T]
        before = ubatch.recurrent.load(self.layer)  # [(K-1)*E, sequences]
        outs, states = [], []
        for run in ubatch.recurrent.runs:
            out, state = self._convolve(bx, before, run)
            outs.append(out)
            states.append(state)
        states_after = reduce(lambda p, q: ops.concat(p, q, 1), states)  # [(K-1)*E, sequences]
        ubatch.write(ubatch.recurrent.store(self.layer, states_after))
        convolved = reduce(lambda p, q: ops.concat(p, q, 1), outs).named("conv_out")  # [E, T]
        return self.out_proj(ops.mul(c, convolved)).named("shortconv_out")  # [E, T]

    def _convolve(self, bx: Tensor, before: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """One run's outputs [E, Tg] and the states after it [(K-1)*E, S]."""
        K, E, _, _ = self.conv.ne
        Tg, S = run.n_tokens, run.n_seqs
        steps = Tg // S
        new = ops.view_3d(
            bx, E, steps, S, bx.nb[1], steps * bx.nb[1], run.first_token * bx.nb[1]
        )  # [E, Tg/S, S]
        old = ops.view_3d(
            before, K - 1, E, S, (K - 1) * before.nb[0], before.nb[1],
            run.first_sequence * before.nb[1],
        )  # [K-1, E, S]  # fmt: skip
        x = ops.concat(old, ops.permute(new, 1, 0, 2, 3), 0)  # [K-1 + Tg/S, E, S]
        out = ops.ssm_conv(x, self.conv)  # [E, Tg/S, S]
        last = ops.view_3d(x, K - 1, E, S, x.nb[1], x.nb[2], steps * x.nb[0])  # [K-1, E, S]
        return ops.reshape_2d(out, E, Tg), ops.cont_2d(last, (K - 1) * E, S)


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Norm  # [E], also before a convolution
    mixer: SelfAttention | ShortConvolution
    ffn_norm: Norm  # [E]
    ffn: FeedForward


class Lfm2:
    """The graph of a dense lfm2 model: `build(ubatch)` gives the logits [V, O]."""

    def __init__(self, file: GGUFFile) -> None:
        self.hparams = read_hparams(file, attention_in_some_layers=True)
        self.weights = Weights(file)
        h, keys = self.hparams, Keys(file)
        n_head_kv = keys.per_layer("attention.head_count_kv", h.n_layer) or []
        self.convolutions = [i for i, n in enumerate(n_head_kv) if n == 0]
        self.n_taps = keys.count("shortconv.l_cache")
        if self.n_taps < 2:
            raise keys.error("shortconv.l_cache", self.n_taps, "at least 2")
        window = keys.whole("attention.sliding_window", 0)
        self.memory = self._memory(window if window > 0 else None)
        self.token_embd = self.weights.take("token_embd.weight", h.n_embd, h.n_vocab)
        self.layers = [self._layer(i) for i in range(h.n_layer)]
        self.output_norm = Norm.take(self.weights, "token_embd_norm", h.n_embd, h)
        self.output = Linear.take_output(self.weights, h)

    def _memory(self, window: int | None) -> Memory:
        h = self.hparams
        attention = [i for i in range(h.n_layer) if i not in self.convolutions]
        groups: list[AttentionLayers | RecurrentLayers] = [attention_layers(h, attention, window)]
        if self.convolutions:
            n_embd_r = (self.n_taps - 1) * h.n_embd
            groups.append(RecurrentLayers(tuple(self.convolutions), n_embd_r))
        return tuple(groups)

    def _layer(self, i: int) -> Layer:
        h, weights = self.hparams, self.weights
        return Layer(
            attn_norm=Norm.take(weights, f"blk.{i}.attn_norm", h.n_embd, h),
            mixer=self._mixer(i),
            ffn_norm=Norm.take(weights, f"blk.{i}.ffn_norm", h.n_embd, h),
            ffn=FeedForward.take(weights, i, h, scaled=False),
        )

    def _mixer(self, i: int) -> SelfAttention | ShortConvolution:
        h, weights = self.hparams, self.weights
        if i in self.convolutions:
            return ShortConvolution.take(weights, i, h.n_embd, self.n_taps)
        return SelfAttention.take(weights, i, h, Rotation(h.rope, RopeMode.NEOX), qk_norm=True)

    def rotation_of(self, layer: int) -> Rotation:
        mixer = self.layers[layer].mixer
        assert isinstance(mixer, SelfAttention), f"layer {layer} has no attention"
        return mixer.rotation

    def build(self, ubatch: UBatch) -> Tensor:
        """Logits [V, O] of the wanted tokens."""
        x = ops.get_rows(self.token_embd, ubatch.tokens)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(f"blk.{i}"):
                h = layer.mixer(layer.attn_norm(x), ubatch)  # [E, T]
                if i == len(self.layers) - 1:  # from here on only wanted tokens matter
                    h = ops.get_rows(h, ubatch.out_ids)  # [E, O]
                    x = ops.get_rows(x, ubatch.out_ids)  # [E, O]
                x = ops.add(x, h).named("ffn_inp")
                x = ops.add(x, layer.ffn(layer.ffn_norm(x))).named("l_out")
        x = self.output_norm(x).named("result_norm")  # [E, O]
        return self.output(x).named("result_output")  # [V, O]
