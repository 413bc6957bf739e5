"""Nemotron-H: layers of one block each: Mamba-2, attention without positions, or feed-forward.

NVIDIA, 2025. Its third generation has experts, which may work in a smaller, latent space.

Letters in shapes: E n_embd, C size of the latent space, X experts, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ggmlpy import ops
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.experts import ExpertLinear, Experts, take_router
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import Layer, PerToken, SequentialLayer, output_rows
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.blocks.state_space import Mamba2
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class FeedForwardLayer:
    """x + ffn(norm(x))."""

    norm: Norm
    ffn: PerToken

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """Nothing."""
        return ()

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        if is_last:
            (x,) = output_rows(inputs, x)
        return ops.add(self.ffn(self.norm(x)), x).named("l_out")


@dataclass(frozen=True, slots=True)
class LatentExperts:
    """Experts of squared ReLU between two maps, and one that all tokens share."""

    down: Linear | None  # [E, C]
    experts: Experts
    up: Linear | None  # [C, E]
    shared: FeedForward

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> LatentExperts:
        """A layer's experts. Their router reads what comes before the latent space."""
        blk, E, keys = f"blk.{layer}", h.n_embd, h.keys
        router = take_router(
            weights,
            layer,
            h,
            gating="sigmoid",
            normalise=keys.flag("expert_weights_norm", False),
            scale=keys.real("expert_weights_scale", 0.0),
        )
        C = keys.whole("moe_latent_size", 0) or E
        own = keys.per_layer("expert_feed_forward_length", 0)[layer]
        F = own or h.layers[layer].n_ff // max(1, router.n_used)
        take = partial(ExpertLinear.take, weights, blk)
        latent = weights.has(f"{blk}.ffn_latent_down.weight")
        return cls(
            down=Linear.take(weights, f"{blk}.ffn_latent_down", E, C) if latent else None,
            experts=Experts(
                router=router,
                gate=None,
                up=take("up", C, F, h.n_expert),
                down=take("down", F, C, h.n_expert),
                activation="relu_sqr",
            ),
            up=Linear.take(weights, f"{blk}.ffn_latent_up", C, E) if latent else None,
            shared=FeedForward.take(
                weights,
                layer,
                h,
                "relu_sqr",
                suffix="_shexp",
                n_ff=keys.count("expert_shared_feed_forward_length"),
            ),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        selected, weights = self.experts.router(x)
        inner = x if self.down is None else self.down(x)  # [C, T]
        out = self.experts.combine(inner, selected, weights)
        if self.up is not None:
            out = self.up(out)  # [E, T]
        return ops.add(out, self.shared(x).named("ffn_shexp")).named("ffn_out")


class NemotronH(Decoder):
    """A nemotron_h or nemotron_h_moe model."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        self.make_layers(self._layer)

    def _layer(self, i: int) -> Layer:
        h, weights, p = self.hparams, self.weights, self.hparams.layers[i]
        norm = self.norm(i, "attn_norm")
        if p.n_ff and weights.has(f"blk.{i}.ffn_gate_inp.weight"):
            return FeedForwardLayer(norm, LatentExperts.take(weights, i, h))
        if p.n_ff:
            return FeedForwardLayer(norm, FeedForward.take(weights, i, h, "relu_sqr"))
        if p.n_head_kv:
            mixer = SelfAttention.take(weights, i, h, None)
            return SequentialLayer(mixer=mixer, ffn=None, attn_norm=norm)
        return SequentialLayer(mixer=Mamba2.take(weights, i, h), ffn=None, attn_norm=norm)
