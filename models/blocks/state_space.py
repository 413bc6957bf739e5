"""State-space layers: Mamba (Gu and Dao, 2023) and Mamba-2 (Dao and Gu, 2024).

Each channel, or head of channels, has a state that decays by exp(dt A) from token to token and
takes in dt B x; C reads it. dt, B and C depend on the token. A short convolution comes before.

Letters in shapes: E n_embd, W inner size, H heads, D head size (W = D*H; Mamba has heads of size
1), N state size, G groups that share B and C, K taps of the convolution, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.recurrent import convolve, recurrent_of, state_rows
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.weights import Weights

N_CONV, N_SSM = 0, 1  # a layer's state leaves: columns of the convolution, states of the scan


@dataclass(frozen=True, slots=True)
class Conv1d:
    """silu(convolution + bias), of each channel over the last K tokens."""

    weight: Tensor  # [K, C]
    bias: Tensor | None  # [C]

    @classmethod
    def take(cls, weights: Weights, name: str, n_taps: int, n: int) -> Conv1d:
        """The tensors `name.weight` and, where the file has it, `name.bias`."""
        weight = weights.take(f"{name}.weight", n_taps, n)
        return cls(weight, weights.maybe(f"{name}.bias", n))

    def __call__(self, x: Tensor, inputs: GraphInputs, layer: int) -> Tensor:
        """x [C, T] -> [C, T]"""
        y = convolve(x, self.weight, inputs, layer, N_CONV)
        if self.bias is not None:
            y = ops.add(y, self.bias).named("conv_b")
        return ops.silu(y).named("conv_output_silu")


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, inputs: GraphInputs, layer: int
) -> Tensor:
    """The scan of all sequences, each from its state on, which is replaced.

    x [D, H, T], dt [H, T] before softplus, A [N or 1, H], B and C [N, G, T] -> [D, H, T]
    """
    recurrent = recurrent_of(inputs)
    D, H, T = x.ne[:3]
    N, R = B.ne[0], recurrent.rows.ne[0]
    states = state_rows(inputs, layer, N_SSM, N, D, H)  # [N, D, H, rows]
    out = ops.ssm_scan(states, x, dt, A, B, C, recurrent.rows, spans=recurrent.spans)
    out = out.named("ssm_scan")
    size = out.type.row_bytes(1)
    n_outputs = D * H * int(T)  # there is room for as many as T may be
    after = ops.view_2d(out, N * D * H, R, N * D * H * size, n_outputs * size)
    after = after.named("ssm_states_after")
    inputs.write(recurrent.store(layer, after, N_SSM).named("ssm_states_stored"))
    return ops.view_3d(out, D, H, T, D * size, D * H * size, 0).named("ssm_scanned")


@dataclass(frozen=True, slots=True)
class Mamba:
    """A state-space layer of Mamba: every channel has its own dt and N states."""

    layer: int
    in_proj: Linear  # [E, 2*W]: x, z
    conv: Conv1d  # [K, W]
    x_proj: Linear  # [W, n_dt + 2*N]: dt, B, C
    dt_norm: Norm | None  # [n_dt]
    b_norm: Norm | None  # [N]
    c_norm: Norm | None  # [N]
    dt_proj: Linear  # [n_dt, W]
    a: Tensor  # [N, W]
    d: Tensor  # [W]
    out_proj: Linear  # [W, E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> Mamba:
        """A layer's `ssm_*`. dt, B and C are normed where the file has weights or says so."""
        name, keys = f"blk.{layer}.ssm", h.keys
        W, N, K = (keys.count(f"ssm.{key}") for key in ("inner_size", "state_size", "conv_kernel"))
        n_dt = keys.count("ssm.time_step_rank")
        plain = keys.flag("ssm.dt_b_c_rms", False)

        def norm(part: str, n: int) -> Norm | None:
            found = Norm.maybe(weights, f"{name}_{part}_norm", n, h)
            return Norm.plain(f"ssm_{part}_norm", h) if found is None and plain else found

        return cls(
            layer=layer,
            in_proj=Linear.take(weights, f"{name}_in", h.n_embd, 2 * W),
            conv=Conv1d.take(weights, f"{name}_conv1d", K, W),
            x_proj=Linear.take(weights, f"{name}_x", W, n_dt + 2 * N),
            dt_norm=norm("dt", n_dt),
            b_norm=norm("b", N),
            c_norm=norm("c", N),
            dt_proj=Linear.take(weights, f"{name}_dt", n_dt, W),
            a=weights.take(f"{name}_a", N, W),
            d=weights.take(f"{name}_d", W),
            out_proj=Linear.take(weights, f"{name}_out", W, h.n_embd),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The convolution's columns and the states."""
        K, W = self.conv.weight.ne[:2]
        return (LayerState(self.layer, ((K - 1) * W, self.a.ne[0] * W), K),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        N, W = self.a.ne[:2]
        xz = self.in_proj(x)  # [2*W, T]
        x, z = part(xz, 0, W, "mamba_x"), part(xz, W, W, "mamba_z_part")  # [W, T]
        x = self.conv(x, inputs, self.layer)
        dbc = self.x_proj(x)  # [n_dt + 2*N, T]
        n_dt = dbc.ne[0] - 2 * N
        dt = self._normed(part(dbc, 0, n_dt, "dt_part"), self.dt_norm)
        B = self._normed(part(dbc, n_dt, N, "B"), self.b_norm)
        C = self._normed(part(dbc, n_dt + N, N, "C"), self.c_norm)
        dt = self.dt_proj(dt if dt.contiguous else ops.cont(dt).named("dt"))  # [W, T]
        by_head = ops.reshape_3d(x, 1, W, x.ne[1])
        y = selective_scan(by_head, dt, self.a, in_group(B, 1), in_group(C, 1), inputs, self.layer)
        y = ops.reshape_2d(y, W, x.ne[1])
        y = ops.add(y, ops.mul(x, self.d).named("mamba_x_d")).named("mamba_y_add_d")
        y = ops.swiglu_split(ops.cont(z).named("mamba_z"), y).named("mamba_y_swiglu")
        return self.out_proj(y).named("mamba_out")

    @staticmethod
    def _normed(x: Tensor, norm: Norm | None) -> Tensor:
        return x if norm is None else norm(x)


@dataclass(frozen=True, slots=True)
class Mamba2Sizes:
    """Sizes of a Mamba-2 layer."""

    n_inner: int  # W
    n_head: int  # H
    n_state: int  # N
    n_group: int  # G
    n_taps: int  # K

    @classmethod
    def read(cls, h: HParams, *, in_groups: bool = True) -> Mamba2Sizes:
        """Without `in_groups` there is one group.

        Raises WeightError for sizes that do not divide each other.
        """
        keys = h.keys
        W, H = keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank")
        G = keys.count("ssm.group_count") if in_groups else 1
        if W % H:
            raise keys.error("ssm.time_step_rank", H, f"a divisor of {W}, the inner size")
        if H % G or W % G:
            raise keys.error("ssm.group_count", G, f"a divisor of {H} heads")
        return cls(W, H, keys.count("ssm.state_size"), G, keys.count("ssm.conv_kernel"))

    @property
    def n_conv(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.n_inner + 2 * self.n_group * self.n_state


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A state-space layer of Mamba-2: a head's channels share dt, A and D."""

    layer: int
    sizes: Mamba2Sizes
    in_proj: Linear  # [E, 2*W + 2*G*N + H]: z, x, B, C, dt
    conv: Conv1d  # [K, W + 2*G*N]
    dt_bias: Tensor  # [H]
    a: Tensor  # [1, H]
    d: Tensor  # [1, H]
    norm: Norm | None  # [W/G, G]
    out_proj: Linear  # [W, E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> Mamba2:
        """A layer's `ssm_*`."""
        name, s = f"blk.{layer}.ssm", Mamba2Sizes.read(h)
        n_in = s.n_inner + s.n_conv + s.n_head
        groups = (s.n_inner // s.n_group, s.n_group)
        return cls(
            layer=layer,
            sizes=s,
            in_proj=Linear.take(weights, f"{name}_in", h.n_embd, n_in),
            conv=Conv1d.take(weights, f"{name}_conv1d", s.n_taps, s.n_conv),
            dt_bias=weights.take(f"{name}_dt.bias", s.n_head),
            a=weights.take(f"{name}_a", 1, s.n_head),
            d=weights.take(f"{name}_d", 1, s.n_head),
            norm=Norm.maybe(weights, f"{name}_norm", groups, h),
            out_proj=Linear.take(weights, f"{name}_out", s.n_inner, h.n_embd),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The convolution's columns and the states."""
        s = self.sizes
        sizes = ((s.n_taps - 1) * s.n_conv, s.n_state * s.n_inner)
        return (LayerState(self.layer, sizes, s.n_taps),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s, T = self.sizes, x.ne[1]
        projected = self.in_proj(x)  # [2*W + 2*G*N + H, T]
        z = part(projected, 0, s.n_inner, "mamba2_z_part")
        dt = part(projected, s.n_inner + s.n_conv, s.n_head, "dt_part")  # [H, T]
        dt = ops.add(ops.cont(dt).named("dt"), self.dt_bias).named("dt_b")
        xbc = self.conv(part(projected, s.n_inner, s.n_conv, "xBC"), inputs, self.layer)
        n_bc = s.n_group * s.n_state
        x = in_group(part(xbc, 0, s.n_inner, "mamba2_x"), s.n_head)  # [D, H, T]
        B = in_group(part(xbc, s.n_inner, n_bc, "B"), s.n_group)  # [N, G, T]
        C = in_group(part(xbc, s.n_inner + n_bc, n_bc, "C"), s.n_group)  # [N, G, T]
        y = selective_scan(x, dt, self.a, B, C, inputs, self.layer)  # [D, H, T]
        y = ops.add(y, ops.mul(x, self.d).named("mamba2_x_d")).named("mamba2_y_add_d")
        y = ops.reshape_2d(y, s.n_inner, T)
        y = ops.swiglu_split(ops.cont(z).named("mamba2_z"), y).named("mamba2_y_swiglu")
        if self.norm is not None:
            y = self.norm(ops.reshape_3d(y, s.n_inner // s.n_group, s.n_group, T))
            y = ops.reshape_2d(y, s.n_inner, T)
        return self.out_proj(y).named("mamba_out")


def part(x: Tensor, first: int, n: int, name: str) -> Tensor:
    """Rows of n elements from `first` on: x [C, T] -> [n, T]"""
    return ops.view_2d(x, n, x.ne[1], x.nb[1], first * x.type.row_bytes(1)).named(name)


def in_group(x: Tensor, n: int) -> Tensor:
    """Each row in n parts: x [C, T], rows may be apart -> [C/n, n, T]"""
    size = x.ne[0] // n
    return ops.view_3d(x, size, n, x.ne[1], x.type.row_bytes(size), x.nb[1], 0)
