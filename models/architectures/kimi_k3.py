"""Kimi K3: Kimi Linear whose layers choose among the sums that earlier blocks of layers left.

Moonshot AI, 2026. Every few layers the residual stream is kept and starts anew; what attention and
feed-forward blocks read is a mixture of the kept streams and the present one. Experts work in a
smaller space, activations are bounded by tanh, latent attention has no positions and is gated.

Letters in shapes: E n_embd, N kept streams, C size of the experts' space, F n_ff, T tokens,
O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.experts import Experts, gating_of, take_router
from ggmlpy.models.blocks.kimi_delta import KimiDelta, read_decay
from ggmlpy.models.blocks.latent_attention import LatentAttention
from ggmlpy.models.blocks.layers import Layer, Mixer, PerToken, output_rows
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.weights import Weights

Glu = Callable[[Tensor, Tensor], Tensor]
_KEPT = "kept streams"


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """sigmoid(gate) * gate held within +-beta by tanh, times up within +-linear_beta, which stays
    as it is if that is 0 or less."""

    def held(x: Tensor, bound: float, name: str) -> Tensor:
        with scope(name):
            inner = ops.scale(x, 1.0 / bound).named("scaled")
            return ops.scale(ops.tanh(inner), bound).named("held")

    if linear_beta > 0:
        up = held(up, linear_beta, "up")
    activated = ops.mul(held(gate, beta, "gate"), ops.sigmoid(gate)).named("gate_situ")
    return ops.mul(activated, up)


@dataclass(frozen=True, slots=True)
class Situ:
    """down(situ(gate(x), up(x)))."""

    gate: Linear  # [E, F]
    up: Linear  # [E, F]
    down: Linear  # [F, E]
    glu: Glu

    @classmethod
    def take(cls, weights: Weights, layer: int, E: int, F: int, glu: Glu, suffix: str = "") -> Situ:
        """A layer's `ffn_{gate,up,down}{suffix}`."""
        take, name = partial(Linear.take, weights, scaled=False, biased=False), f"blk.{layer}.ffn"
        return cls(
            gate=take(f"{name}_gate{suffix}", E, F),
            up=take(f"{name}_up{suffix}", E, F),
            down=take(f"{name}_down{suffix}", F, E, node="ffn_shexp" if suffix else "ffn_out"),
            glu=glu,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        gate, up = self.gate(x), self.up(x)
        with scope(f"{self.gate.name}_situ"):
            h = self.glu(gate, up)
        return self.down(h)


@dataclass(frozen=True, slots=True)
class LatentExperts:
    """Experts of a smaller space, whose router reads x, and a shared one of x."""

    down: Linear | None  # [E, C]
    experts: Experts
    norm: Norm | None  # [C]
    up: Linear | None  # [C, E]
    shared: Situ | None

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams, glu: Glu) -> LatentExperts:
        """A layer's experts, and the maps to their space where they have one."""
        blk, E, keys = f"blk.{layer}", h.n_embd, h.keys
        router = take_router(
            weights,
            layer,
            h,
            gating=gating_of(h, None),
            normalise=keys.flag("expert_weights_norm", False),
            scale=keys.real("expert_weights_scale", 0.0),
        )
        F = keys.per_layer("expert_feed_forward_length", 0)[layer]
        C = keys.whole("expert_latent_length", 0)
        inner = replace(h, n_embd=C) if C else h
        experts = Experts.take(weights, layer, inner, router, n_ff=F, scaled=False)
        take = partial(Linear.take, weights, scaled=False, biased=False)
        n_shared = F * max(1, keys.whole("expert_shared_count", 0))
        has_shared = weights.has(f"{blk}.ffn_gate_shexp.weight")
        return cls(
            down=take(f"{blk}.ffn_routed_down", E, C) if C else None,
            experts=replace(experts, glu=glu),
            norm=Norm.maybe(weights, f"{blk}.ffn_routed_norm", C, h) if C else None,
            up=take(f"{blk}.ffn_routed_up", C, E) if C else None,
            shared=Situ.take(weights, layer, E, n_shared, glu, "_shexp") if has_shared else None,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        selected, weights = self.experts.router(x)
        inner = x if self.down is None else self.down(x)  # [C, T]
        out = self.experts.combine(inner, selected, weights)
        if self.norm is not None:
            out = self.norm(out)
        if self.up is not None:
            out = self.up(out)  # [E, T]
        return out if self.shared is None else ops.add(out, self.shared(x)).named("ffn_out")


@dataclass(frozen=True, slots=True)
class Mixture:
    """The mixture of kept streams and the present one, by the softmax of a score of each."""

    name: str  # of nodes
    weight: Tensor  # [E]
    eps: float

    def __call__(self, x: Tensor, kept: Tensor | None) -> Tensor:
        """x [E, T], kept [E, N, T] -> [E, T]"""
        if kept is None:
            return x
        _, N, T, _ = kept.ne
        with scope(self.name):
            of_kept = ops.reshape_2d(self._scores(kept, "kept"), N, T)
            probs = ops.soft_max(ops.concat(of_kept, self._scores(x, "own"), 0)).named("probs")
            of_kept = ops.cont(ops.view_2d(probs, N, T, probs.nb[1], 0)).named("probs_kept")
            own = ops.view_2d(probs, 1, T, probs.nb[1], N * probs.nb[0]).named("probs_own")
            own = ops.mul(x, ops.cont(own)).named("own")  # [E, T]
            return ops.add(ops.dsv4_hc_pre(kept, of_kept), own).named("mix")

    def _scores(self, x: Tensor, name: str) -> Tensor:
        """x [E, ...] -> [1, ...]"""
        with scope(name):
            return ops.sum_rows(ops.mul(ops.rms_norm(x, self.eps), self.weight))


@dataclass(frozen=True, slots=True)
class MixingLayer:
    """One layer. With `keeps` its input is handed on as a kept stream, and the present one starts
    anew."""

    attn_norm: Norm
    mixer: Mixer
    ffn_norm: Norm
    ffn: PerToken
    attn_mix: Mixture | None
    ffn_mix: Mixture | None
    keeps: bool

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """What the mixer keeps."""
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        kept = inputs.handed_on.get(_KEPT)  # [E, N, T]
        h = x if self.attn_mix is None else self.attn_mix(x, kept)
        h = self.mixer(self.attn_norm(h), inputs)
        if self.keeps:
            mine = ops.reshape_3d(x, x.ne[0], 1, x.ne[1])
            kept = mine if kept is None else ops.concat(kept, mine, 1).named("res_kept")
            x = h
        else:
            x = ops.add(x, h).named("prefix_sum_attn")
        if is_last:
            (x,) = output_rows(inputs, x)  # [E, O]
            kept = None if kept is None else _outputs(inputs, kept)  # [E, N, O]
        if kept is not None:
            inputs.handed_on[_KEPT] = kept
        h = x if self.ffn_mix is None else self.ffn_mix(x, kept)
        return ops.add(x, self.ffn(self.ffn_norm(h))).named("l_out")


def _outputs(inputs: GraphInputs, kept: Tensor) -> Tensor:
    """Of kept [E, N, T] the tokens that are output: [E, N, O]"""
    E, N, T, _ = kept.ne
    (rows,) = output_rows(inputs, ops.reshape_2d(kept, E * N, T).named("res_kept_rows"))
    return ops.reshape_3d(rows, E, N, rows.ne[1])


class KimiK3(Decoder):
    """A kimi-k3 model. Layers without K/V heads are delta nets."""

    output_biased = False

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, read_hparams(file))
        keys = self.hparams.keys
        self.glu = partial(
            situ,
            beta=keys.positive("activation.situ_beta"),
            linear_beta=keys.signed("activation.situ_linear_beta"),
        )
        self.period = keys.whole("attn_res.block_size", 0)
        self.n_dense = keys.whole("leading_dense_block_count", 0)
        self.decay = read_decay(keys)
        self.make_layers(self.layer)
        self.output_mix = self._mixture("output_res_score")

    def layer(self, i: int) -> Layer:
        """Layer i."""
        h, weights = self.hparams, self.weights
        mixer: Mixer
        if h.layers[i].n_head_kv:
            mixer = LatentAttention.take(weights, i, h, None, scaled=False, output_scaled=False)
        else:
            mixer = KimiDelta.take(weights, i, h, self.decay)
        ffn: PerToken
        if i < self.n_dense:
            ffn = Situ.take(weights, i, h.n_embd, h.layers[i].n_ff, self.glu)
        else:
            ffn = LatentExperts.take(weights, i, h, self.glu)
        return MixingLayer(
            attn_norm=self.norm(i, "attn_norm"),
            mixer=mixer,
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=ffn,
            attn_mix=self._mixture(f"blk.{i}.attn_res_score"),
            ffn_mix=self._mixture(f"blk.{i}.ffn_res_score"),
            keeps=self.period > 0 and i % self.period == 0,
        )

    def _mixture(self, name: str) -> Mixture | None:
        """None if the file has no period."""
        if not self.period:
            return None
        h = self.hparams
        weight = self.weights.take(f"{name}.weight", h.n_embd)
        return Mixture(name.rpartition(".")[2], weight, h.rms_norm_eps)

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output: [E, O]"""
        x = super().hidden(inputs)
        return x if self.output_mix is None else self.output_mix(x, inputs.handed_on.get(_KEPT))
