"""Gemma 3n: four streams of embeddings that predict and correct each other.

Google DeepMind, 2025. AltUp (Baykal et al., 2023): a layer computes one of four streams; the others
are predicted before and corrected after it. Laurel (Menghani et al., 2024): a residual of low rank.
The first ten feed-forward blocks keep the largest 5 % of their gates. The last layers read the K
and V that earlier ones stored.

Letters in shapes: E n_embd, A streams, R rank, F n_ff, T tokens, O outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.layers import Layer, output_rows
from ggmlpy.models.blocks.per_layer import PerLayerEmbedding, PerLayerInput
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
        routed = ops.scale(self.router_norm(x), 1.0 / x.ne[0]).named("router_inputs")
        return ops.tanh(ops.mul_mat(self.router, routed).named("router")).named("modalities")

    def predicted(self, x: Tensor) -> Tensor:
        """x [E, T, A] -> [E, T, A]"""
        T, A = x.ne[1:3]
        with scope("altup_predict"):
            modalities = self._modalities(stream(x, 0, "active"))  # [A, T]
            coefs = ops.mul_mat(self.predict, modalities).named("all_coefs")  # [A*A, T]
            coefs = ops.reshape_3d(coefs, A, A, T)
            by_token = ops.cont(ops.permute(x, 1, 2, 0, 3)).named("by_token")  # [A, E, T]
            mixed = ops.mul_mat(by_token, coefs)  # [E, A, T]
            mixed = ops.cont(ops.permute(mixed, 0, 2, 1, 3)).named("mixed")  # [E, T, A]
        return ops.add(mixed, x).named("predictions")

    def corrected(self, predictions: Tensor, active: Tensor) -> Tensor:
        """predictions [E, T, A], active [E, T], what the layer made of stream 0 -> [E, T, A]"""
        E, T, A = predictions.ne[:3]
        with scope("altup_correct"):
            new = ops.sub(active, stream(predictions, 0, "active")).named("innovation")  # [E, T]
            coefs = ops.mul_mat(self.correct, self._modalities(active))  # [A, T]
            coefs = ops.scale_bias(coefs, 1.0, 1.0).named("all_coefs")
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
            with scope("ffn_gate_sparse"):
                centred = ops.sub(gate, ops.mean(gate)).named("centred")  # [F, T]
                squares = ops.sum_rows(ops.sqr(centred))  # [1, T]
                variance = ops.scale(squares, 1.0 / (gate.ne[0] - 1)).named("variance")
                cutoff = ops.scale(ops.sqrt(variance), DEVIATIONS)
                gate = ops.relu(ops.sub(centred, cutoff))
        gelu = ops.gelu(gate).named("ffn_gelu")
        return self.down(ops.mul(self.up(x), gelu).named("ffn_geglu")).named("ffn_out")


@dataclass(frozen=True, slots=True)
class AltUpLayer:
    """One layer of all streams: x [E, T, A] -> [E, T, A]; in the last layer [E, O, A]."""

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

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        predictions = self.altup.predicted(x)
        active = stream(predictions, 0, "active_prediction")  # [E, T]
        normed = self.attn_norm(active)
        residual = self.laurel(normed)
        h = ops.add(self.attn_post_norm(self.mixer(normed, inputs)), active).named("attn_gated")
        h = ops.add(h, residual).named("attn_laurel_sum")
        h = ops.scale(h, 1.0 / math.sqrt(2.0)).named("attn_laurel")  # [E, T]
        if is_last:
            (h,) = output_rows(inputs, h)  # [E, O]
            predictions = _outputs(inputs, predictions)  # [E, O, A]
        h = ops.add(self.ffn_post_norm(self.ffn(self.ffn_norm(h))), h)  # [E, T]
        corrected = self.altup.corrected(predictions, h.named("attn_ffw_laurel_gated"))
        first = stream(corrected, 0, "first")  # [E, T]
        scaled = ops.mul(first, self.correct_scale).named("first_scaled")
        own = self.per_layer(scaled, inputs, is_last=is_last)  # [E, T]
        others = ops.add(streams_from(corrected, 1), own).named("others")  # [E, T, A-1]
        return ops.concat(first, others, 2).named("l_out")


class Gemma3n(Decoder):
    """A gemma3n model."""

    def __init__(self, file: GGUFFile) -> None:
        h = read_hparams(file)
        swa = h.layers[0].rope.unscaled(h.keys.positive("rope.freq_base_swa", 10_000.0))
        super().__init__(file, h.with_windows(h.keys.windowed(5), swa))
        h, E = self.hparams, h.n_embd
        if h.n_layer <= 2:
            raise h.keys.error("block_count", h.n_layer, "above 2")
        for key, value in _fixed(h.n_layer).items():
            h.keys.fixed(key, value)
        self.embedding_scale = math.sqrt(E)
        self.softcap = h.keys.real("final_logit_softcapping", 30.0)
        self.per_layer = PerLayerEmbedding.take(self.weights, h, N_EMBD_LAYER)
        self.altup_proj = self.weights.take("altup_proj.weight", E, E, N_ALTUP - 1)
        self.altup_unembd = self.weights.take("altup_unembd_proj.weight", E, E, N_ALTUP - 1)
        # As in llama.cpp, also the one that is read with the embedding.
        self.weights.declare_output("altup_proj", "altup_unembd_proj")
        self.make_layers(self.layer)

    def layer(self, i: int) -> Layer:
        """Layer i."""
        h, weights = self.hparams, self.weights
        rope = Rope(h.layers[i].rope, RopeMode.NEOX)
        slot = kv_slot(h, i, min(N_OWN_KV, h.n_layer))
        return AltUpLayer(
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

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The embeddings of the tokens as streams: [E, T, A], the others as projections of its
        length."""
        x = super().embed(inputs)
        self.per_layer.hand_on(x, inputs)
        E, T = x.ne[:2]
        with scope("altup_proj"):
            repeated = ops.repeat_4d(x, E, T, N_ALTUP - 1, 1)
            others = _resized(ops.mul_mat(self.altup_proj, repeated), x)
        return ops.concat(x, others, 2).named("inp_stacked")

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """The mean of the streams of the tokens that are output, mapped back: [E, O]"""
        x = super().hidden(inputs)  # [E, O, A]
        with scope("altup_unembd"):
            total = first = stream(x, 0, "first")
            others = _resized(ops.mul_mat(self.altup_unembd, streams_from(x, 1)), first)
            for i in range(N_ALTUP - 1):
                total = ops.add(total, stream(others, i, f"stream_{i}")).named(f"sum_{i}")
        return ops.scale(total, 1.0 / N_ALTUP).named("unembd_merged")


def _fixed(n_layer: int) -> dict[str, float | list[float]]:
    """Keys of which llama.cpp has one value for all files: others than this cause a warning."""
    n_sparse = min(N_SPARSE, n_layer)
    return {
        "altup.num_inputs": N_ALTUP,
        "altup.active_idx": 0,
        "embedding_length_per_layer_input": N_EMBD_LAYER,
        "attention.shared_kv_layers": max(0, n_layer - N_OWN_KV),
        "activation_sparsity_scale": [DEVIATIONS] * n_sparse + [0.0] * (n_layer - n_sparse),
    }


def stream(x: Tensor, i: int, name: str) -> Tensor:
    """Stream i of x [E, T, A]: [E, T]"""
    return ops.view_2d(x, x.ne[0], x.ne[1], x.nb[1], i * x.nb[2]).named(name)


def streams_from(x: Tensor, i: int) -> Tensor:
    """The streams of x [E, T, A] from i on: [E, T, A-i]"""
    y = ops.view_3d(x, x.ne[0], x.ne[1], x.ne[2] - i, x.nb[1], x.nb[2], i * x.nb[2])
    return y.named(f"streams_from_{i}")


def _outputs(inputs: GraphInputs, x: Tensor) -> Tensor:
    """Of x [E, T, A] the tokens that are output: [E, O, A]"""
    with scope("outputs"):
        streams = output_rows(inputs, *(stream(x, i, f"stream_{i}") for i in range(x.ne[2])))
        total = streams[0]
        for i, more in enumerate(streams[1:]):
            total = ops.concat(total, more, 2).named(f"streams_{i}")
    return total


def _magnitude(x: Tensor, name: str) -> Tensor:
    """The length of rows: x [E, ...] -> [1, ...]"""
    with scope(name):
        return ops.sqrt(ops.sum_rows(ops.sqr(x)))


def _resized(x: Tensor, like: Tensor) -> Tensor:
    """x [E, T, A-1] with rows as long as those of `like` [E, T]."""
    wanted = _magnitude(like, "target_magnitude")
    return ops.div(ops.mul(x, wanted), _magnitude(x, "new_magnitude"))
