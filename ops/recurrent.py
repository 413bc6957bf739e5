"""Ops of recurrent layers: the short convolution, and gated linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, I32
from ggmlpy.ops.linear_attention import infer_wkv
from ggmlpy.ops.rows import check_ids
from ggmlpy.ops.spans import Scan


@op("ssm_conv")
@dataclass(frozen=True, slots=True)
class SsmConv(Op):
    """A causal convolution of each channel with its own short kernel.

        y[c, t, s] = sum_k x[t + k, c, s] * kernel[k, c]
        x [K - 1 + T, C, S], kernel [K, C], both f32  ->  y [C, T, S] f32

    x holds the K - 1 steps before the first, then the T steps. With taps, x is a table of columns,
    and taps lists those that each step takes, of any sequences:

        y[c, t] = sum_k x[c, taps[k, t]] * kernel[k, c]
        x [C, N] f32, kernel [K, C] f32, taps [K, T] i32  ->  y [C, T] f32

    Both sum in the order of k. Raises ShapeError for other shapes and types, and unless rows are
    contiguous; IndexOutOfRange when run with a tap outside 0 to N - 1. Source: Gu & Dao, "Mamba",
    2023.
    """

    has_taps: bool = False

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        return ("x", "kernel", "taps")[:n_srcs]

    def infer(self, x: Spec, kernel: Spec, *given: Spec) -> Spec:
        require(x.type is F32 and kernel.type is F32, "x and kernel must be f32")
        require(
            x.rows_contiguous and kernel.rows_contiguous, "x and kernel must have contiguous rows"
        )
        n_taps, n_channels = kernel.ne[:2]
        require(kernel.ne[2:] == (1, 1), "kernel must have at most 2 dimensions")
        if self.has_taps:
            return self._infer_listed(x, kernel, *given)
        require(x.ne[3] == 1, "x must have at most 3 dimensions")
        require(
            x.ne[1] == n_channels,
            f"dimension 1 of x and kernel, {x.ne[1]} and {n_channels}, must be equal",
        )
        n_steps = x.ne[0] - n_taps + 1
        require(n_steps >= 1, f"x has {x.ne[0]} steps: it must have at least {n_taps}, the taps")
        return Spec((n_channels, n_steps, x.ne[2]), F32)

    def _infer_listed(self, x: Spec, kernel: Spec, taps: Spec) -> Spec:
        n_taps, n_channels = kernel.ne[:2]
        require(x.ne[2:] == (1, 1), "x must have at most 2 dimensions")
        require(
            x.ne[0] == n_channels,
            f"dimension 0 of x, {x.ne[0]}, must be dimension 1 of kernel, {n_channels}",
        )
        require(taps.type is I32 and taps.rows_contiguous, "taps must be i32 with contiguous rows")
        require(taps.ne[2:] == (1, 1), "taps must have at most 2 dimensions")
        require(
            taps.ne[0] == n_taps,
            f"dimension 0 of taps and kernel, {taps.ne[0]} and {n_taps}, must be equal",
        )
        return Spec((n_channels, taps.ne[1]), F32)

    def reference(self, x: Array, kernel: Array, *given: Array) -> Array:
        if self.has_taps:
            return self._listed_reference(x[0, 0], kernel[0, 0], given[0])
        n_taps = kernel.shape[3]
        windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.float64), n_taps, axis=2)
        taps = kernel[0, 0].astype(np.float64)
        y: Array = np.einsum("sctk,ck->stc", windows, taps)
        return y[None]

    def _listed_reference(self, x: Array, kernel: Array, taps: Array) -> Array:
        check_ids(self.name, taps, len(x), "columns", "taps")
        columns = x.astype(np.float64)[taps[0, 0]]  # [T, K, C]
        y: Array = np.einsum("tkc,ck->tc", columns, kernel.astype(np.float64))
        return y[None, None]


@op("gated_linear_attn")
@dataclass(frozen=True, slots=True)
class GatedLinearAttn(Scan):
    """Linear attention with a state that decays by a gate, for each head and sequence.

        state[i, j] = state[i, j] * g[i] + k[i] * v[j]
        y[j] = scale * sum_i state[i, j] * q[i]                           after every token

    k, v, q, g [D, H, T], state [D * D * H, S] (within a head: j fastest, then i), all f32; the T
    tokens are S sequences of T / S one after another  ->  y [D * H, T + D * S]: first the outputs,
    then the new states. With spans (see ops/spans.py) sequences have any numbers of tokens. Raises
    ShapeError for other shapes and types, and unless all sources are contiguous.
    Source: Yang et al., 2023.
    """

    scale: float
    room: int | None = None

    token_axes: ClassVar[Mapping[int, int]] = dict.fromkeys(range(4), 1)
    state_axes: ClassVar[Mapping[int, int]] = {4: 2}
    values: ClassVar[int] = 1

    def infer(
        self, k: Spec, v: Spec, q: Spec, g: Spec, state: Spec, spans: Spec | None = None
    ) -> Spec:
        return infer_wkv(self, spans, state, k, v, q, g)

    def reference(self, *sources: Array) -> Array:
        if self.room is not None:
            flat = self.by_spans(sources, lambda op, parts: op.reference(*parts))
            return flat.reshape(1, 1, -1, sources[0].shape[2] * sources[0].shape[3])
        k, v, q, g, state = sources
        k, v, q, g = (t[0].astype(np.float64) for t in (k, v, q, g))  # numpy order [T, H, D]
        n_tokens, n_head, size = k.shape
        n_seq = state.shape[2]
        states = state.astype(np.float64).reshape(n_seq, n_head, size, size)  # [S, H, i, j]
        outputs = np.empty((n_tokens, n_head, size))
        for t in range(n_tokens):
            s = t // (n_tokens // n_seq)
            states[s] = states[s] * g[t][:, :, None] + k[t][:, :, None] * v[t][:, None, :]
            outputs[t] = self.scale * np.einsum("hij,hi->hj", states[s], q[t])
        flat = np.concatenate([outputs.reshape(-1), states.reshape(-1)])
        return flat.reshape(1, 1, -1, size * n_head)


@checked
def ssm_conv(sx: Tensor, c: Tensor, *, taps: Tensor | None = None) -> Tensor:
    """`ggml_ssm_conv`: sx the steps, c the kernel; see SsmConv, also for `taps`."""
    return SsmConv().node(sx, c) if taps is None else SsmConv(has_taps=True).node(sx, c, taps)


@checked
def gated_linear_attn(
    k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, scale: float, *,
    spans: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`ggml_gated_linear_attn`; see GatedLinearAttn, also for `spans`."""
    if spans is None:
        return GatedLinearAttn(scale).node(k, v, q, g, state)
    return GatedLinearAttn(scale, int(k.ne[2])).node(k, v, q, g, state, spans)
