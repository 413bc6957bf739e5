"""Chameleon, Meta's model of text and images as one sequence of tokens (2024).

llama with LayerNorm over each head of q and k; the larger model norms results instead of inputs, as
Swin (Liu et al., 2022). Tokens of images may be read, but only text is written: their logits are
the lowest number, as in llama.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode

FIRST_IMAGE, N_IMAGE = 4, 8192  # tokens of images
QK_EPS = 1e-5
LOWEST = float(np.finfo(np.float32).min)


class Chameleon(PreNormDecoder):
    """A chameleon model."""

    rope_mode = RopeMode.NORMAL
    output_bias = False

    def read(self, file: GGUFFile) -> HParams:
        """Raises WeightError for a vocabulary without the tokens of images."""
        h = read_hparams(file)
        if h.n_vocab < FIRST_IMAGE + N_IMAGE:
            least = f"at least {FIRST_IMAGE + N_IMAGE}, of which {N_IMAGE} are tokens of images"
            raise h.keys.error("vocab_size", h.n_vocab, least)
        return h

    def set_up(self) -> None:
        """Whether results are normed."""
        self.norms_results = self.hparams.keys.flag("swin_norm", False)

    def layer(self, i: int) -> SequentialLayer:
        """With norms of inputs, or of results."""
        attn_norm = self.norm(i, "attn_norm")
        ffn_norm = self.norm(i, "ffn_norm")
        if self.norms_results:
            return SequentialLayer(
                mixer=self.mixer(i),
                attn_post_norm=attn_norm,
                ffn=self.ffn(i),
                ffn_post_norm=ffn_norm,
            )
        return SequentialLayer(
            attn_norm=attn_norm, mixer=self.mixer(i), ffn_norm=ffn_norm, ffn=self.ffn(i)
        )

    def mixer(self, i: int) -> SelfAttention:
        """With norms of q and k."""
        p = self.hparams.layers[i]
        return replace(
            cast(SelfAttention, super().mixer(i)),
            q_norm=self._head_norm(i, "q", p.n_embd_head_k, p.n_head),
            k_norm=self._head_norm(i, "k", p.n_embd_head_k, p.n_head_kv),
        )

    def _head_norm(self, i: int, part: str, D: int, n_head: int) -> Norm:
        """Over each head, with weights of its own: [D, n_head]"""
        name = f"blk.{i}.attn_{part}_norm"
        return Norm(
            f"{part.upper()}cur_normed",
            "layer",
            self.weights.take(f"{name}.weight", D, n_head),
            self.weights.maybe(f"{name}.bias", D, n_head),
            QK_EPS,
        )

    def logits(self, x: Tensor) -> Tensor:
        """x [E, O], normed -> [V, O]"""
        y = super().logits(x)
        after = self.hparams.n_vocab - FIRST_IMAGE - N_IMAGE
        with scope("img_logits"):
            numbers = [(FIRST_IMAGE, 0.0), (N_IMAGE, LOWEST), (after, 0.0)]
            parts = [
                ops.fill(ops.arange(0.0, float(n), 1.0).named(f"ids_{i}"), value).named(f"part_{i}")
                for i, (n, value) in enumerate(numbers)
                if n
            ]
            added = parts[0]
            for i, part in enumerate(parts[1:]):
                added = ops.concat(added, part, 0).named(f"joined_{i}")  # in the end [V]
        return ops.add(y, added)
