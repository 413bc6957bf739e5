"""Gemma 3n: four streams of embeddings that predict and correct each other.

Google DeepMind, 2025. AltUp (Baykal et al., 2023): a layer computes one of four streams; the others
are predicted before and corrected after it. Laurel (Menghani et al., 2024): a residual of low rank.
The first ten feed-forward blocks keep the largest 5 % of their gates. The last layers read the K
and V that earlier ones stored.

Letters in shapes: E n_embd, A streams, P size of a layer's own embedding, L layers, F n_ff,
T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.architectures.gemma4 import PerLayerEmbedding, PerLayerInput, of_layer
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.shared_kv import SharedKVAttention, kv_slot
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode

N_ALTUP, N_LAUREL, N_EMBD_LAYER = 4, 64, 256  # of all its models, which files do not hold
N_OWN_KV = 20  # layers that store K and V
N_SPARSE = 10  # layers whose gates are sparse
DEVIATIONS = 1.6448533535003662  # of a normal distribution, that 5 % lie above


@dataclass(frozen=True, slots=True)
class AltUp:
    """The prediction of all streams before a layer, and their correction after it."""

    router: Tensor  # [E, A]
    router_norm: Norm  # [E]
    predict: Tensor  # [A, A*A]
    correct: Tensor  # [A, A]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> AltUp:
        """A layer's `altup_*`."""
        blk, E, A = f"blk.{layer}.altup", h.n_embd, N_ALTUP
        return cls(
            weights.take(f"{blk}_router.weight", E, A),
            Norm.take(weights, f"{blk}_router_norm", E, h),
            weights.take(f"{blk}_predict_coef.weight", A, A * A),
            weights.take(f"{blk}_correct_coef.weight", A, A),
        )

    def _modalities(self, x: Tensor) -> Tensor:
        """x [E, T] -> [A, T]"""
        routed = ops.scale(self.router_norm(x), 1.0 / x.ne[0])
        return ops.tanh(ops.mul_mat(self.router, routed)).named("altup_modalities")

    def predicted(self, x: Tensor) -> Tensor:
        """x [E, T, A] -> [E, T, A]"""
        T, A = x.ne[1:3]
        coefs = ops.mul_mat(self.predict, self._modalities(stream(x, 0)))  # [A*A, T]
        coefs = ops.reshape_3d(coefs, A, A, T)
        by_token = ops.cont(ops.permute(x, 1, 2, 0, 3))  # [A, E, T]
        mixed = ops.mul_mat(by_token, coefs)  # [E, A, T]
        mixed = ops.cont(ops.permute(mixed, 0, 2, 1, 3))  # [E, T, A]
        return ops.add(mixed, x).named("predictions")

    def corrected(self, predictions: Tensor, active: Tensor) -> Tensor:
        """predictions [E, T, A], active [E, T], what the layer made of stream 0 -> [E, T, A]"""
        E, T, A = predictions.ne[:3]
        new = ops.sub(active, stream(predictions, 0))  # [E, T]
        coefs = ops.scale_bias(ops.mul_mat(self.correct, self._modalities(active)), 1.0, 1.0)
        coefs = ops.cont_3d(ops.transpose(coefs), 1, T, A)  # [1, T, A]
        change = ops.mul(ops.repeat_4d(new, E, T, A, 1), coefs)
        return ops.add(change, predictions).named("corrected")


@dataclass(frozen=True, slots=True)
class Laurel:
    """x + norm(right(left(x)))."""

    left: Linear  # [E, R]
    right: Linear  # [R, E]
    norm: Norm  # [E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> Laurel:
        """A layer's `laurel_*`."""
        blk, E = f"blk.{layer}.laurel", h.n_embd
        return cls(
            Linear.take(weights, f"{blk}_l", E, N_LAUREL),
            Linear.take(weights, f"{blk}_r", N_LAUREL, E),
            Norm.take(weights, f"{blk}_post_norm", E, h),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        return ops.add(self.norm(self.right(self.left(x))), x).named("laurel_out")


@dataclass(frozen=True, slots=True)
class SparseFeedForward:
    """down(gelu(gate(x)) * up(x)); if sparse, gates below the cutoff of their row are 0."""

    gate: Linear  # [E, F]
    up: Linear  # [E, F]
    down: Linear  # [F, E]
    is_sparse: bool

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> SparseFeedForward:
        """A layer's feed-forward block."""
        blk, E, F = f"blk.{layer}", h.n_embd, h.layers[layer].n_ff
        gate, up = (Linear.take(weights, f"{blk}.ffn_{name}", E, F) for name in ("gate", "up"))
        down = Linear.take(weights, f"{blk}.ffn_down", F, E)
        return cls(gate, up, down, layer < N_SPARSE)

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        gate = self.gate(x)  # [F, T]
        if self.is_sparse:
            centred = ops.sub(gate, ops.mean(gate))  # [F, T]
            variance = ops.scale(ops.sum_rows(ops.sqr(centred)), 1.0 / (gate.ne[0] - 1))  # [1, T]
            cutoff = ops.scale(ops.sqrt(variance), DEVIATIONS)
            gate = ops.relu(ops.sub(centred, cutoff)).named("ffn_gate_sparse")
        return self.down(ops.mul(self.up(x), ops.gelu(gate))).named("ffn_out")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of all streams."""

    altup: AltUp
    attn_norm: Norm
    laurel: Laurel
    mixer: SharedKVAttention
    attn_post_norm: Norm
    ffn_norm: Norm
    ffn: SparseFeedForward
    ffn_post_norm: Norm
    correct_scale: Tensor  # [E]
    per_layer: PerLayerInput

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, embedding: Tensor) -> Tensor:
        """x [E, T, A], embedding [P, T] -> [E, T, A]"""
        predictions = self.altup.predicted(x)
        active = stream(predictions, 0)  # [E, T]
        normed = self.attn_norm(active)
        residual = self.laurel(normed)
        h = ops.add(self.attn_post_norm(self.mixer(normed, inputs)), active)
        h = ops.scale(ops.add(h, residual), 1.0 / math.sqrt(2.0)).named("attn_laurel")
        h = ops.add(self.ffn_post_norm(self.ffn(self.ffn_norm(h))), h)  # [E, T]
        corrected = self.altup.corrected(predictions, h)  # [E, T, A]
        first = ops.mul(stream(corrected, 0), self.correct_scale)  # [E, T]
        own = self.per_layer(first, embedding)  # [E, T]
        others = ops.add(streams_from(corrected, 1), own)  # [E, T, A-1]
        return ops.concat(stream(corrected, 0), others, 2).named("l_out")


class Gemma3n(Decoder):
    """A gemma3n model."""

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        swa = h.layers[0].rope.unscaled(h.keys.positive("rope.freq_base_swa", 10_000.0))
        super().__init__(file, h.with_windows(h.keys.windowed(5), swa))
        h, E = self.hparams, h.n_embd
        if h.n_layer <= 2:
            raise h.keys.error("block_count", h.n_layer, "above 2")
        self.embedding_scale = math.sqrt(E)
        self.softcap = h.keys.real("final_logit_softcapping", 30.0)
        self.per_layer = PerLayerEmbedding.take(self.weights, h, N_EMBD_LAYER)
        self.altup_proj = self.weights.take("altup_proj.weight", E, E, N_ALTUP - 1)
        self.altup_unembd = self.weights.take("altup_unembd_proj.weight", E, E, N_ALTUP - 1)
        self._layers = [self._layer(i) for i in range(h.n_layer)]
        self.remember(self._layers)

    def _layer(self, i: int) -> Layer:
        h, weights = self.hparams, self.weights
        rope = Rope(h.layers[i].rope, RopeMode.NEOX)
        slot = kv_slot(h, i, min(N_OWN_KV, h.n_layer))
        return Layer(
            altup=AltUp.take(weights, i, h),
            attn_norm=self.norm(i, "attn_norm"),
            laurel=Laurel.take(weights, i, h),
            mixer=SharedKVAttention.take(weights, i, h, rope, slot),
            attn_post_norm=self.norm(i, "post_attention_norm", node="attn_post_norm"),
            ffn_norm=self.norm(i, "ffn_norm"),
            ffn=SparseFeedForward.take(weights, i, h),
            ffn_post_norm=self.norm(i, "post_ffw_norm", node="ffn_post_norm"),
            correct_scale=weights.take(f"blk.{i}.altup_correct_scale.weight", h.n_embd),
            per_layer=PerLayerInput.take(weights, i, h, N_EMBD_LAYER),
        )

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output: [E, O]"""
        x = self.embed(inputs)  # [E, T]
        per_layer = self.per_layer(x, inputs)  # [P, L, T]
        x = self._streams(x)  # [E, T, A]
        for i, layer in enumerate(self._layers):
            with scope(layer=i):
                x = layer(x, inputs, of_layer(per_layer, i))
        return ops.get_rows(self._merged(x), inputs.out_ids)  # [E, O]

    def _streams(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T, A], the others as projections of its length"""
        E, T = x.ne[:2]
        repeated = ops.repeat_4d(x, E, T, N_ALTUP - 1, 1)
        others = _resized(ops.mul_mat(self.altup_proj, repeated), x)
        return ops.concat(x, others, 2).named("inp_stacked")

    def _merged(self, x: Tensor) -> Tensor:
        """x [E, T, A] -> the mean of its streams [E, T], mapped back"""
        first = stream(x, 0)
        others = _resized(ops.mul_mat(self.altup_unembd, streams_from(x, 1)), first)
        total = first
        for i in range(N_ALTUP - 1):
            total = ops.add(total, stream(others, i))
        return ops.scale(total, 1.0 / N_ALTUP)


def stream(x: Tensor, i: int) -> Tensor:
    """Stream i of x [E, T, A]: [E, T]"""
    return ops.view_2d(x, x.ne[0], x.ne[1], x.nb[1], i * x.nb[2])


def streams_from(x: Tensor, i: int) -> Tensor:
    """The streams of x [E, T, A] from i on: [E, T, A-i]"""
    return ops.view_3d(x, x.ne[0], x.ne[1], x.ne[2] - i, x.nb[1], x.nb[2], i * x.nb[2])


def _magnitude(x: Tensor) -> Tensor:
    """The length of rows: x [E, ...] -> [1, ...]"""
    return ops.sqrt(ops.sum_rows(ops.sqr(x)))


def _resized(x: Tensor, like: Tensor) -> Tensor:
    """x [E, T, A-1] with rows as long as those of `like` [E, T]."""
    return ops.div(ops.mul(x, _magnitude(like)), _magnitude(x))
