"""Gemma 3: norms before and after every block, GeGLU, sliding windows in five layers of six.

Layers with a window have a rope base of their own and no context scaling.
Gemma Team, 2025.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks import FeedForward, Norm, Rope, SelfAttention
from ggmlpy.models.decoder import Decoder, output_rows
from ggmlpy.models.hparams import HParams, Keys, attention_layers, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import Memory
from ggmlpy.ops.rope import RopeMode

N_LAYER_27B = 62  # its attention scale is computed from n_embd / n_head, not the head size


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and feed-forward, each with a norm before it and one after it."""

    attn_norm: Norm  # [E]
    mixer: SelfAttention
    attn_post_norm: Norm  # [E]
    ffn_norm: Norm  # [E]
    ffn: FeedForward
    ffn_post_norm: Norm  # [E]

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, T] -> [E, T]; in the last layer [E, O]"""
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(x, h, inputs)  # [E, O]
        x = ops.add(self.attn_post_norm(h), x).named("sa_out")
        h = self.ffn(self.ffn_norm(x))
        return ops.add(self.ffn_post_norm(h), x).named("l_out")


class Gemma3(Decoder):
    """A gemma3 model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        h, keys = self.hparams, Keys(file)
        self.window = keys.whole("attention.sliding_window", 0)
        self.windowed = _windowed_layers(keys) if self.window > 0 else set()
        self.softcap = keys.real("final_logit_softcapping", 0.0)
        self.memory = self._memory()
        full = Rope(h.rope, RopeMode.NEOX)
        swa_params = replace(
            h.rope,
            freq_base=keys.positive("rope.freq_base_swa", 10_000.0),
            freq_scale=1.0,
            ext_factor=0.0,
            attn_factor=1.0,
        )
        swa = Rope(swa_params, RopeMode.NEOX)
        self.layers = [
            self._layer(i, swa if i in self.windowed else full) for i in range(h.n_layer)
        ]

    def _memory(self) -> Memory:
        h = self.hparams
        full = [i for i in range(h.n_layer) if i not in self.windowed]
        groups = ((full, None), (sorted(self.windowed), self.window))
        return tuple(attention_layers(h, layers, window) for layers, window in groups if layers)

    def _layer(self, i: int, rope: Rope) -> Layer:
        h, weights, blk = self.hparams, self.weights, f"blk.{i}"
        scale = _attention_scale(h)
        norm = partial(Norm.take, weights)
        return Layer(
            attn_norm=norm(f"{blk}.attn_norm", h.n_embd, h),
            mixer=SelfAttention.take(weights, i, h, rope, qk_norm=True, scale=scale),
            attn_post_norm=norm(f"{blk}.post_attention_norm", h.n_embd, h, node="attn_post_norm"),
            ffn_norm=norm(f"{blk}.ffn_norm", h.n_embd, h),
            ffn=FeedForward.take(weights, i, h, "geglu", scaled=False),
            ffn_post_norm=norm(f"{blk}.post_ffw_norm", h.n_embd, h, node="ffn_post_norm"),
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Scaled: tokens [T] -> [E, T]"""
        return ops.scale(super().embed(tokens), math.sqrt(self.hparams.n_embd)).named("inp_scaled")

    def logits(self, x: Tensor) -> Tensor:
        """softcap * tanh(y / softcap) of the logits y, if the file has one: x [E, O] -> [V, O]"""
        y = super().logits(x)  # [V, O]
        if not self.softcap:
            return y
        with scope("softcap"):
            return ops.scale(ops.tanh(ops.scale(y, 1.0 / self.softcap)), self.softcap)


def _windowed_layers(keys: Keys) -> set[int]:
    """All but every sixth layer, unless the file has another period or lists the layers."""
    key = "attention.sliding_window_pattern"
    listed = keys.per_layer(key)
    if listed is not None:
        return {i for i, windowed in enumerate(listed) if windowed}
    period = keys.count(key, 6)
    return {i for i in range(keys.n_layer) if (i + 1) % period}


def _attention_scale(h: HParams) -> float:
    n = h.n_embd // h.n_head if h.n_layer == N_LAYER_27B else h.n_embd_head_k
    return 1.0 / math.sqrt(n)
