"""Hyper-connections: several residual streams, which each block reads and writes mixed.

Source: Zhu et al., "Hyper-Connections", 2024; matrices made doubly stochastic by Sinkhorn's
iteration: Xie et al., "mHC", 2025. Independent ones, as in Hunyuan 4, do not mix the streams.

Letters in shapes: E n_embd, C streams, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.layers import Mixer, PerToken, output_rows
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class StreamLogits:
    """Linear maps of all streams, normed, which weights follow from; the first C of n to read."""

    name: str  # of nodes
    fn: Tensor  # [C*E, n]
    scale: Tensor  # one for each part
    base: Tensor  # [n]
    eps: float
    norm_eps: float

    @classmethod
    def take(cls, weights: Weights, name: str, h: HParams, n: int, n_part: int) -> StreamLogits:
        """The tensors `{name}_*`."""
        C = h.keys.count("hyper_connection.count")
        return cls(
            name=name.rpartition(".")[2],
            fn=weights.take(f"{name}_fn.weight", C * h.n_embd, n),
            scale=weights.take(f"{name}_scale.weight", n_part),
            base=weights.take(f"{name}_base.weight", n),
            eps=h.keys.real("hyper_connection.epsilon"),
            norm_eps=h.rms_norm_eps,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, C, T] -> [n, T]"""
        E, C, T, _ = x.ne
        flat = ops.rms_norm(ops.reshape_2d(x, E * C, T), self.norm_eps)
        return ops.mul_mat(self.fn, flat).named("mixes")

    def gate(self, mixes: Tensor, i: int, C: int, name: str) -> Tensor:
        """The sigmoid of part i of C of what a call gives, scaled and biased: [C, T]"""
        size = mixes.type.row_bytes(1)
        with scope(name):
            part = ops.view_2d(mixes, C, mixes.ne[1], mixes.nb[1], i * C * size)
            scale = ops.view_1d(self.scale, 1, i * size).named("scale")
            base = ops.view_1d(self.base, C, i * C * size).named("base")
            return ops.sigmoid(ops.add(ops.mul(part.named("logits"), scale), base))

    def read(self, x: Tensor, mixes: Tensor) -> Tensor:
        """The sum of the streams x [E, C, T] with the weights to read: [E, T]"""
        pre = ops.scale_bias(self.gate(mixes, 0, x.ne[1], "pre"), 1.0, self.eps).named("pre")
        return ops.dsv4_hc_pre(x, pre).named("read")

    def reduce(self, x: Tensor) -> Tensor:
        """`read` of what a call gives: x [E, C, T] -> [E, T]"""
        with scope(self.name):
            return self.read(x, self(x))


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """How one block reads the streams, and how it writes them."""

    logits: StreamLogits  # n = (2 + C)*C: to read, to write, and to mix; independent: 2*C
    n_iter: int  # 0: independent
    magnitude: float  # of the weights to write
    write_eps: float  # added to them

    @classmethod
    def take(
        cls, weights: Weights, layer: int, block: str, h: HParams, *, independent: bool = False
    ) -> HyperConnection:
        """The tensors `hc_{block}_*` of a layer."""
        keys, name = h.keys, f"blk.{layer}.hc_{block}"
        C = keys.count("hyper_connection.count")
        if independent:
            logits = StreamLogits.take(weights, name, h, 2 * C, 2)
            return cls(logits, 0, keys.real("hyper_connection.magnitude"), logits.eps)
        logits = StreamLogits.take(weights, name, h, (2 + C) * C, 3)
        return cls(logits, keys.count("hyper_connection.sinkhorn_iterations"), 2.0, 0.0)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """x [E, C, T] -> what the block reads [E, T], and what `write` needs: the weights of its
        result [C, T], and the matrix that mixes the streams [C, C, T], None if independent."""
        logits = self.logits
        with scope(logits.name):
            mixes = logits(x)  # [(2 + C)*C or 2*C, T]
            post = logits.gate(mixes, 1, x.ne[1], "post")  # [C, T]
            post = ops.scale_bias(post, self.magnitude, self.write_eps).named("post")
            comb = None
            if self.n_iter:
                comb = ops.dsv4_hc_comb(mixes, logits.scale, logits.base, logits.eps, self.n_iter)
                comb = comb.named("comb")
            return logits.read(x, mixes), post, comb

    def write(self, h: Tensor, x: Tensor, post: Tensor, comb: Tensor | None) -> Tensor:
        """h [E, T], the block's result, x [E, C, T] -> [E, C, T]"""
        with scope(self.logits.name):
            return ops.dsv4_hc_post(h, x, post, comb).named("written")


@dataclass(frozen=True, slots=True)
class HyperLayer:
    """One layer of all streams. The last one gives their weighted sum, or their mean."""

    attn: HyperConnection
    attn_norm: Norm
    mixer: Mixer
    ffn_hc: HyperConnection
    ffn_norm: Norm
    ffn: PerToken
    head: StreamLogits | None = None  # n = C: the weights of the sum

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
        if not is_last:
            return x.named("l_out")
        out = mean_of(x) if self.head is None else self.head.reduce(x)
        return out.named("hc_head")


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
    total: Tensor | None = None
    with scope("hc_mean"):
        for i in range(C):
            stream = ops.view_2d(x, E, T, x.nb[2], i * x.nb[1]).named(f"stream_{i}")
            total = stream if total is None else ops.add(total, stream).named(f"sum_{i}")
        assert total is not None
        return ops.scale(total, 1.0 / C)
