"""Delta nets: linear attention whose state is corrected by what it already says of a key.

Gated delta nets (Yang et al., 2024) let the state of each head decay by one factor a token; Kimi
Delta Attention (Kimi Team, 2025) by one for each element of the key. q, k and v come through a
short convolution, q and k have unit length.

Letters in shapes: E n_embd, D head size, H heads of v, Hk of q and k, W = D*H, K taps of the
convolution, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.recurrent import convolve, load_states, recurrent_of, scanned
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.weights import Weights


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    inputs: GraphInputs,
    layer: int,
    i: int,
) -> Tensor:
    """The scan of all sequences, each from its state in the layer's leaf i on, which is replaced.

    q and k [D, Hk, T], v [D, H, T], decay [1 or D, H, T] as a logarithm, beta [1, H, T]. Head h of
    v has head h % Hk of q and k. -> [D, H, T]
    """
    D, H, T, _ = v.ne
    with scope("delta_net"):
        states = load_states(inputs, layer, i, D, D, H)  # [D, D, H, R]
        spans = recurrent_of(inputs).spans
        out = ops.gated_delta_net(q, k, v, decay, beta, states, spans=spans).named("scan")
        out = scanned(out, D * H, inputs, layer, i)  # [D*H, T]
    return ops.reshape_3d(out, D, H, T).named("attn_output")


def unit(x: Tensor, eps: float, name: str) -> Tensor:
    """Each row of x [D, H, T] over sqrt(the sum of its squares + eps): a node called `name`."""
    D = x.ne[0]
    normed = ops.rms_norm(x, eps / D).named(f"{name}_normed")
    return ops.scale(normed, 1.0 / math.sqrt(D)).named(name)


def take_n_taps(h: HParams) -> int:
    """`ssm.conv_kernel`, at least 2: a layer keeps the columns of the tokens before."""
    K = h.keys.count("ssm.conv_kernel")
    if K < 2:
        raise h.keys.error("ssm.conv_kernel", K, "at least 2")
    return K


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Sizes of a gated delta net."""

    n_head: int  # H
    n_head_k: int  # Hk
    n_embd_head: int  # D
    n_taps: int  # K

    @classmethod
    def read(cls, h: HParams) -> DeltaSizes:
        """Raises WeightError for sizes that do not fit each other."""
        keys = h.keys
        D, H, Hk = (
            keys.count(f"ssm.{key}") for key in ("state_size", "time_step_rank", "group_count")
        )
        if H % Hk:
            raise keys.error("ssm.group_count", Hk, f"a divisor of {H}, the time_step_rank")
        W = keys.count("ssm.inner_size")
        if W != D * H:
            raise keys.error("ssm.inner_size", W, f"{H} heads of {D}, the state_size")
        return cls(H, Hk, D, take_n_taps(h))

    @property
    def n_k(self) -> int:
        """Elements of q, and of k, of one token."""
        return self.n_embd_head * self.n_head_k

    @property
    def n_v(self) -> int:
        """Elements of v of one token: W."""
        return self.n_embd_head * self.n_head

    @property
    def n_conv(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.n_k + self.n_v


class DeltaProjection(Protocol):
    """The maps of a gated delta net's input."""

    def qkvz(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [E, T] -> q, k and v before the convolution [2*D*Hk + W, T], the gate z [W, T]."""
        ...

    def beta_alpha(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [E, T] -> beta before the sigmoid, alpha: [H, T] each, contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateDelta:
    """Four linear maps."""

    qkv: Linear  # [E, 2*D*Hk + W]
    z: Linear  # [E, W]
    beta: Linear  # [E, H]
    alpha: Linear  # [E, H]

    @classmethod
    def take(cls, weights: Weights, layer: int, s: DeltaSizes, E: int) -> SeparateDelta:
        """A layer's `attn_qkv`, `attn_gate`, `ssm_beta` and `ssm_alpha`."""
        blk = f"blk.{layer}"
        return cls(
            *(
                Linear.take(weights, f"{blk}.{name}", E, n, node=node, biased=False)
                for name, n, node in (
                    ("attn_qkv", s.n_conv, "linear_attn_qkv_mixed"),
                    ("attn_gate", s.n_v, "z"),
                    ("ssm_beta", s.n_head, "beta"),
                    ("ssm_alpha", s.n_head, "alpha"),
                )
            )
        )

    def qkvz(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.qkv(x), self.z(x)

    def beta_alpha(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.beta(x), self.alpha(x)


GateActivation = Literal["silu", "sigmoid"]


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """A gated delta net; its result is normed per head and gated by silu(z) or sigmoid(z)."""

    layer: int
    sizes: DeltaSizes
    projection: DeltaProjection
    conv: Tensor  # [K, 2*D*Hk + W]
    dt_bias: Tensor  # [H]
    a: Tensor  # [H], below 0
    norm: Norm  # [D]
    output: Linear  # [W, E]
    eps: float
    neighbours: bool = False  # v's heads share q and k with their neighbours
    gate: GateActivation = "silu"
    n_taps: int = 0  # that the state has columns for, if more than K

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        projection: DeltaProjection,
        *,
        scaled: bool = True,
        neighbours: bool = False,
        gate: GateActivation = "silu",
    ) -> GatedDeltaNet:
        """A layer's `ssm_*`; see Linear for `scaled`, which is of the map back.

        Head i of v has head i % Hk of q and k, or with `neighbours` i // (H / Hk).
        """
        name, s = f"blk.{layer}.ssm", DeltaSizes.read(h)
        return cls(
            layer=layer,
            sizes=s,
            projection=projection,
            conv=weights.take(f"{name}_conv1d.weight", s.n_taps, s.n_conv),
            dt_bias=weights.take(f"{name}_dt.bias", s.n_head),
            a=weights.take(f"{name}_a", s.n_head),
            norm=Norm.take(weights, f"{name}_norm", s.n_embd_head, h),
            output=Linear.take(
                weights,
                f"{name}_out",
                s.n_v,
                h.n_embd,
                node="linear_attn_out",
                scaled=scaled,
                biased=False,
            ),
            eps=h.rms_norm_eps,
            neighbours=neighbours,
            gate=gate,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The convolution's columns and the states."""
        s = self.sizes
        n_taps = max(self.n_taps, s.n_taps)
        return (LayerState(self.layer, ((n_taps - 1) * s.n_conv, s.n_embd_head * s.n_v), n_taps),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s, T = self.sizes, x.ne[1]
        qkv, z = self.projection.qkvz(x)  # [2*D*Hk + W, T], [W, T]
        beta, alpha = self.projection.beta_alpha(x)  # [H, T]
        beta = ops.sigmoid(beta).named("beta_sigmoid")
        alpha = ops.add(alpha, self.dt_bias).named("alpha_biased")
        alpha = ops.softplus(alpha).named("a_softplus")
        decay = ops.mul(alpha, self.a).named("gate")  # [H, T]
        qkv = ops.silu(convolve(qkv, self.conv, inputs, self.layer)).named("conv_output_silu")
        q = _heads(qkv, 0, s.n_embd_head, s.n_head_k).named("q_conv")
        k = _heads(qkv, s.n_k, s.n_embd_head, s.n_head_k).named("k_conv")
        v = _heads(qkv, 2 * s.n_k, s.n_embd_head, s.n_head).named("v_conv")  # [D, H, T]
        out = delta_rule(
            self._shared(unit(q, self.eps, "q_conv_unit"), "q"),
            self._shared(unit(k, self.eps, "k_conv_unit"), "k"),
            v,
            ops.reshape_3d(decay, 1, s.n_head, T),
            ops.reshape_3d(beta, 1, s.n_head, T),
            inputs,
            self.layer,
            1,
        )  # [D, H, T]
        out = ops.reshape_2d(self.norm(out), s.n_v, T)  # [W, T]
        if self.gate == "silu":
            out = ops.swiglu_split(z, out)
        else:
            out = ops.mul(out, ops.sigmoid(z).named("z_sigmoid"))
        return self.output(out.named("final_output"))  # [E, T]

    def _shared(self, x: Tensor, part: str) -> Tensor:
        """x [D, Hk, T], or with `neighbours` repeated so that each head of v has its own."""
        D, Hk, T, _ = x.ne
        n = self.sizes.n_head // Hk
        if not self.neighbours or n == 1 or Hk == 1:
            return x
        x = ops.repeat_4d(ops.reshape_4d(x, D, 1, Hk, T), D, n, Hk, T).named(f"{part}_repeated")
        return ops.reshape_3d(x, D, n * Hk, T).named(f"{part}_conv_predelta")  # [D, H, T]


def _heads(x: Tensor, first: int, D: int, n_head: int) -> Tensor:
    """Elements from `first` on of each row of x [C, T] as heads: [D, n_head, T]"""
    row, offset = x.type.row_bytes(D), x.type.row_bytes(1) * first
    return ops.view_3d(x, D, n_head, x.ne[1], row, x.nb[1], offset)
