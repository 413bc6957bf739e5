"""Llama: RMSNorm, rotary attention with grouped K/V heads, SwiGLU or a mixture of such experts.

Also Mistral, Mixtral and whatever else says `llama` in its file. Touvron et al., 2023; experts as
in Jiang et al., 2024.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.models.batch import UBatch
from ggmlpy.models.blocks import FeedForward, Linear, Norm, Rotation, SelfAttention
from ggmlpy.models.experts import Experts
from ggmlpy.models.hparams import attention_layers, read_hparams
from ggmlpy.models.memory import Memory
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode
from ggmlpy.tensor import Tensor, scope


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Norm  # [E]
    attention: SelfAttention
    ffn_norm: Norm  # [E]
    ffn: FeedForward | Experts


class Llama:
    """The graph of a llama-family model: `build(ubatch)` gives the logits [V, O]."""

    def __init__(self, file: GGUFFile) -> None:
        self.hparams = read_hparams(file)
        self.weights = Weights(file)
        self.memory: Memory = (attention_layers(self.hparams),)
        h = self.hparams
        self.token_embd = self.weights.take("token_embd.weight", h.n_embd, h.n_vocab)
        self.layers = [self._layer(i) for i in range(h.n_layer)]
        self.output_norm = Norm.take(self.weights, "output_norm", h.n_embd, h)
        self.output = Linear.take_output(self.weights, h)

    def _layer(self, i: int) -> Layer:
        h, weights = self.hparams, self.weights
        freq_factors = weights.maybe("rope_freqs.weight", h.rope.n_dims // 2)
        rotation = Rotation(h.rope, RopeMode.NORMAL, freq_factors)
        ffn = Experts if h.n_expert else FeedForward
        return Layer(
            attn_norm=Norm.take(weights, f"blk.{i}.attn_norm", h.n_embd, h),
            attention=SelfAttention.take(weights, i, h, rotation),
            ffn_norm=Norm.take(weights, f"blk.{i}.ffn_norm", h.n_embd, h),
            ffn=ffn.take(weights, i, h),
        )

    def rotation_of(self, layer: int) -> Rotation:
        return self.layers[layer].attention.rotation

    def build(self, ubatch: UBatch) -> Tensor:
        """Logits [V, O] of the wanted tokens."""
        x = ops.get_rows(self.token_embd, ubatch.tokens)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(f"blk.{i}"):
                h = layer.attention(layer.attn_norm(x), ubatch)  # [E, T]
                if i == len(self.layers) - 1:  # from here on only wanted tokens matter
                    h = ops.get_rows(h, ubatch.out_ids)  # [E, O]
                    x = ops.get_rows(x, ubatch.out_ids)  # [E, O]
                x = ops.add(x, h).named("ffn_inp")
                x = ops.add(x, layer.ffn(layer.ffn_norm(x))).named("l_out")
        x = self.output_norm(x).named("result_norm")  # [E, O]
        return self.output(x).named("result_output")  # [V, O]
