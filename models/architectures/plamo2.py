"""PLaMo 2: Mamba in most layers, attention in some, norms before and after every block.

Preferred Networks, 2024. Its state-space layers have heads as Mamba-2, and dt, B and C that depend
on the convolved channels as Mamba.

Letters in shapes: E n_embd, W inner size, H heads, D head size, N state size, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.layers import Mixer
from ggmlpy.models.blocks.self_attention import SelfAttention
from ggmlpy.models.blocks.state_space import Conv1d, Mamba2Sizes, in_group, part, selective_scan
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory, LayerState
from ggmlpy.models.pre_norm import POST_NORMS, PreNormDecoder
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Plamo2Mamba:
    """A state-space layer."""

    layer: int
    sizes: Mamba2Sizes
    in_proj: Linear  # [E, 2*W]: of each head z, x
    conv: Conv1d  # [K, W]
    x_proj: Linear  # [W, 2*N + n_dt]: B, C, dt
    norms: tuple[Norm, Norm, Norm]  # of B, C, dt
    dt_proj: Linear  # [n_dt, H]
    a: Tensor  # [H]
    d: Tensor  # [H]
    out_proj: Linear  # [W, E]

    @classmethod
    def take(cls, weights: Weights, layer: int, h: HParams) -> Plamo2Mamba:
        """A layer's `ssm_*`."""
        name, s, E = f"blk.{layer}.ssm", Mamba2Sizes.read(h, in_groups=False), h.n_embd
        n_dt, N = max(64, E // 16), s.n_state
        b, c, dt = (
            Norm.take(weights, f"{name}_{part_name}_norm", n, h)
            for part_name, n in (("b", N), ("c", N), ("dt", n_dt))
        )
        return cls(
            layer=layer,
            sizes=s,
            in_proj=Linear.take(weights, f"{name}_in", E, 2 * s.n_inner, scaled=False),
            conv=Conv1d.take(weights, f"{name}_conv1d", s.n_taps, s.n_inner),
            x_proj=Linear.take(weights, f"{name}_x", s.n_inner, 2 * N + n_dt),
            norms=(b, c, dt),
            dt_proj=Linear.take(weights, f"{name}_dt", n_dt, s.n_head),
            a=weights.take(f"{name}_a", s.n_head),
            d=weights.take(f"{name}_d", s.n_head),
            out_proj=Linear.take(weights, f"{name}_out", s.n_inner, E, scaled=False),
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The convolution's columns and the states."""
        s = self.sizes
        sizes = ((s.n_taps - 1) * s.n_inner, s.n_state * s.n_inner)
        return (LayerState(self.layer, sizes, s.n_taps),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s, T = self.sizes, x.ne[1]
        D, H, N = s.n_inner // s.n_head, s.n_head, s.n_state
        zx = in_group(self.in_proj(x), H)  # [2*D, H, T]
        z = ops.view_3d(zx, D, H, T, zx.nb[1], zx.nb[2], 0).named("mamba_z")
        z = ops.cont(z).named("mamba_z_split")  # [D, H, T]
        x = ops.view_3d(zx, D, H, T, zx.nb[1], zx.nb[2], zx.type.row_bytes(D)).named("mamba_x")
        x = ops.cont(x).named("mamba_x_split")  # [D, H, T]
        x = self.conv(ops.reshape_2d(x, s.n_inner, T), inputs, self.layer)  # [W, T]
        bcdt = self.x_proj(x)  # [2*N + n_dt, T]
        b_norm, c_norm, dt_norm = self.norms
        B = b_norm(part(bcdt, 0, N, "mamba_B_raw"))  # [N, T]
        C = c_norm(part(bcdt, N, N, "mamba_C_raw"))  # [N, T]
        dt = dt_norm(part(bcdt, 2 * N, bcdt.ne[0] - 2 * N, "mamba_dt_raw"))
        dt = self.dt_proj(dt)  # [H, T]
        x = in_group(x, H)  # [D, H, T]
        a, d = ops.reshape_2d(self.a, 1, H), ops.reshape_2d(self.d, 1, H)
        y = selective_scan(x, dt, a, in_group(B, 1), in_group(C, 1), inputs, self.layer)
        y = ops.add(y, ops.mul(x, d).named("mamba_x_d")).named("mamba_y_add_d")
        y = ops.swiglu_split(z, y).named("mamba_y_swiglu")
        return self.out_proj(ops.reshape_2d(y, s.n_inner, T)).named("mamba_out")


class Plamo2(PreNormDecoder):
    """A plamo2 model."""

    post_norms = POST_NORMS
    rope_factored = False

    def mixer(self, i: int) -> Mixer:
        """A state-space layer where there are no K/V heads."""
        if not self.hparams.layers[i].n_head_kv:
            return Plamo2Mamba.take(self.weights, i, self.hparams)
        return SelfAttention.take(
            self.weights,
            i,
            self.hparams,
            self.layer_rope(i),
            scale=1.0 / math.sqrt(self.hparams.layers[i].n_embd_head_v),
            qk_norm="rms",
            output_bias=False,
            qkv_scaled=False,
        )
