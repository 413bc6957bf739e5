"""Hunyuan: llama whose heads of q and k are normed after they are rotated. Tencent, 2025.

Contexts are extended by a larger base of the rotary embedding (NTK-aware scaling), from the key
`rope.scaling.alpha`.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, LayerParams, has_mrope, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder
from ggmlpy.ops.rope import RopeMode


class HunyuanDense(PreNormDecoder):
    """A hunyuan-dense or hunyuan_vl model (its text part, which may have M-RoPE)."""

    qk_norm = "rms"
    norm_last = True

    def read(self, file: GGUFFile) -> HParams:
        """With the base of the rotary embedding that the scaling gives."""
        h = read_hparams(file)
        alpha = h.keys.real("rope.scaling.alpha", 0.0)
        return h.replaced(lambda _, p: _with_alpha(p, alpha)) if alpha else h

    def layer_rope(self, i: int) -> Rope | None:
        """As the file says."""
        return self.rope(i, RopeMode.MROPE if has_mrope(self.hparams.keys) else RopeMode.NEOX)


def _with_alpha(p: LayerParams, alpha: float) -> LayerParams:
    D = p.n_embd_head_k
    base = p.rope.freq_base * alpha ** (D / max(1, D - 2))
    return replace(p, rope=replace(p.rope, freq_base=base))


class HunyuanMoE(ExpertDecoder):
    """A hunyuan-moe model: Hunyuan A13B, with one shared expert (Tencent, 2025)."""

    qk_norm = "rms"
    norm_last = True

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size."""
        return self.hparams.layers[i].n_ff

    def n_ff_shared(self, i: int) -> int:
        """As the file says, or a dense block's size."""
        h = self.hparams
        return h.keys.whole("expert_shared_feed_forward_length", 0) or h.layers[i].n_ff


class Hunyuan3(ExpertDecoder):
    """A hy_v3 model: dense layers, then experts as DeepSeek-V3 has them; q and k are normed before
    they are rotated (2026)."""

    qk_norm = "rms"
    ffn_scaled = True
    experts_scaled = True
    gating = "sigmoid"
    gating_from_file = True
    normalise = None
    weights_scaled = True

    def set_up(self) -> None:
        """Tensors tell which layers are dense."""
        self.hparams.keys.without_effect("leading_dense_block_count")

    def is_dense(self, i: int) -> bool:
        """A layer has experts if it has a router."""
        return not self.weights.has(f"blk.{i}.ffn_gate_inp.weight")

    def n_ff_shared(self, i: int) -> int:
        """As the file says, or one expert's size."""
        own = self.hparams.keys.whole("expert_shared_feed_forward_length", 0)
        return own or self.n_ff_expert(i)
