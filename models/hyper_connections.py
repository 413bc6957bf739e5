"""Hyper-connections: several residual streams, which each block reads and writes mixed.

Source: Zhu et al., "Hyper-Connections", 2024; matrices made doubly stochastic by Sinkhorn's
iteration: Xie et al., "mHC", 2025.

Letters in shapes: E n_embd, C streams, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks import Norm
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.layers import Mixer, PerToken, output_rows
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """How one block reads the streams, and how it writes them."""

    name: str  # of nodes
    fn: Tensor  # [C*E, (2 + C)*C]
    scale: Tensor  # [3]: of the weights to read, to write, and to mix
    base: Tensor  # [(2 + C)*C]
    n_iter: int
    eps: float
    norm_eps: float

    @classmethod
    def take(cls, weights: Weights, layer: int, block: str, h: HParams) -> HyperConnection:
        """The tensors `hc_{block}_*` of a layer."""
        keys, name = h.keys, f"blk.{layer}.hc_{block}"
        C = keys.count("hyper_connection.count")
        n = (2 + C) * C
        return cls(
            name=f"hc_{block}",
            fn=weights.take(f"{name}_fn.weight", C * h.n_embd, n),
            scale=weights.take(f"{name}_scale.weight", 3),
            base=weights.take(f"{name}_base.weight", n),
            n_iter=keys.count("hyper_connection.sinkhorn_iterations"),
            eps=keys.real("hyper_connection.epsilon"),
            norm_eps=h.rms_norm_eps,
        )

    def read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [E, C, T] -> what the block reads [E, T], and what `write` needs: the weights of its
        result [C, T], and the matrix that mixes the streams [C, C, T]."""
        E, C, T, _ = x.ne
        flat = ops.rms_norm(ops.reshape_2d(x, E * C, T), self.norm_eps)
        mixes = ops.mul_mat(self.fn, flat).named(f"{self.name}_mixes")  # [(2 + C)*C, T]
        pre = ops.scale_bias(ops.sigmoid(self._part(mixes, 0, C)), 1.0, self.eps)
        post = ops.scale(ops.sigmoid(self._part(mixes, 1, C)), 2.0).named(f"{self.name}_write")
        comb = ops.dsv4_hc_comb(mixes, self.scale, self.base, self.eps, self.n_iter)
        read = ops.dsv4_hc_pre(x, pre.named(f"{self.name}_read")).named(f"{self.name}_pre")
        return read, post, comb.named(f"{self.name}_comb")

    def write(self, h: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """h [E, T], the block's result, x [E, C, T] -> [E, C, T]"""
        return ops.dsv4_hc_post(h, x, post, comb).named(f"{self.name}_post")

    def _part(self, mixes: Tensor, i: int, C: int) -> Tensor:
        """Part i of C of the logits, scaled and biased: [C, T]"""
        size = mixes.type.row_bytes(1)
        part = ops.view_2d(mixes, C, mixes.ne[1], mixes.nb[1], i * C * size)
        scale = ops.view_1d(self.scale, 1, i * size)
        base = ops.view_1d(self.base, C, i * C * size)
        return ops.add(ops.mul(part, scale), base)


@dataclass(frozen=True, slots=True)
class HyperLayer:
    """One layer of all streams. The last one gives their mean."""

    attn: HyperConnection
    attn_norm: Norm
    mixer: Mixer
    ffn_hc: HyperConnection
    ffn_norm: Norm
    ffn: PerToken

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """What the mixer keeps."""
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        """x [E, C, T] -> [E, C, T]; in the last layer [E, O]"""
        h, post, comb = self.attn.read(x)
        x = self.attn.write(self.mixer(self.attn_norm(h), inputs), x, post, comb)
        if is_last:
            x = output_streams(inputs, x)
        h, post, comb = self.ffn_hc.read(x)
        x = self.ffn_hc.write(self.ffn(self.ffn_norm(h)), x, post, comb)
        return mean_of(x).named("hc_head") if is_last else x.named("l_out")


def spread(x: Tensor, C: int) -> Tensor:
    """x [E, T] in all of C streams: [E, C, T]"""
    E, T, _, _ = x.ne
    return ops.repeat_4d(ops.reshape_3d(x, E, 1, T), E, C, T, 1).named("hc_init")


def output_streams(inputs: GraphInputs, x: Tensor) -> Tensor:
    """The tokens that are output: x [E, C, T] -> [E, C, O]"""
    E, C, T, _ = x.ne
    (flat,) = output_rows(inputs, ops.reshape_2d(x, E * C, T))  # [E*C, O]
    return ops.reshape_3d(flat, E, C, flat.ne[1])


def mean_of(x: Tensor) -> Tensor:
    """x [E, C, T] -> [E, T]"""
    E, C, T, _ = x.ne
    total = ops.view_2d(x, E, T, x.nb[2], 0)
    for i in range(1, C):
        total = ops.add(total, ops.view_2d(x, E, T, x.nb[2], i * x.nb[1]))
    return ops.scale(total, 1.0 / C)
