"""Step 3.5: gates for each head, windows, experts whose activations are limited. StepFun, 2026.

Layers with full attention rotate half of what the others do, by frequencies with factors.
"""

from __future__ import annotations

from dataclasses import replace

from ggmlpy.gguf import GGUFFile
from ggmlpy.models.blocks.basic import Rope, RopeFactors
from ggmlpy.models.expert_decoder import ExpertDecoder
from ggmlpy.models.hparams import HParams, LayerParams, read_hparams


class Step35(ExpertDecoder):
    """A step35 model."""

    qk_norm = "rms"
    attn_gate = "attn_gate"
    output_bias = False
    gating = "sigmoid"
    gating_from_file = True
    normalise = None
    weights_scaled = True
    ffn_biased = False
    limited = True

    def read(self, file: GGUFFile) -> HParams:
        """With windows in the layers that the file says."""
        h = read_hparams(file)
        h.keys.count("attention.sliding_window")  # must be there
        for key in ("leading_dense_block_count", "moe_every_n_layers"):
            h.keys.without_effect(key)  # see `is_dense`
        rope = h.layers[0].rope
        base = h.keys.positive("rope.freq_base_swa", 10_000.0)
        windowed = h.keys.windowed(0)
        h = h.with_windows(windowed, replace(rope, freq_base=base, freq_scale=1.0))
        return h.replaced(lambda _, p: p if p.window is not None else _half_rotated(p))

    def layer_rope(self, i: int) -> Rope | None:
        """Factors are of full attention only, as many as the most that is rotated needs."""
        layers = self.hparams.layers
        factors = RopeFactors.maybe(self.weights, max(p.rope.n_dims for p in layers))
        full = layers[i].window is None
        return Rope(layers[i].rope, self.rope_mode, factors if full else None)

    def is_dense(self, i: int) -> bool:
        """A layer has experts if it has a router."""
        return not self.weights.has(f"blk.{i}.ffn_gate_inp.weight")

    def n_ff_shared(self, i: int) -> int:
        """As the file says."""
        return self.hparams.keys.whole("expert_shared_feed_forward_length", 0)


def _half_rotated(p: LayerParams) -> LayerParams:
    return replace(p, rope=replace(p.rope, n_dims=p.rope.n_dims // 2))
