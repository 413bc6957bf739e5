"""Hunyuan, dense: llama whose heads of q and k are normed after they are rotated. Tencent, 2025.

Contexts are extended by a larger base of the rotary embedding (NTK-aware scaling), from the key
`rope.scaling.alpha`.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks import Rope
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
