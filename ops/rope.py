"""Rotary position embedding, with YaRN's context extension and multi-axis positions.

Letters: D head size, H heads, T tokens, S sequences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32, I32


class RopeMode(IntEnum):
    """Which elements form pairs, and by which position each pair is rotated; ggml's numbers."""

    NORMAL = 0  # pairs (2i, 2i + 1)
    NEOX = 2  # pairs (i, i + n_dims / 2)
    MROPE = 8  # pairs as NEOX; four positions a token, by sections of pairs
    VISION = 24  # pairs (i, i + n_dims), n_dims = D / 2; as MROPE, angles restart in each section
    IMROPE = 40  # as MROPE with the first three sections interleaved

    @property
    def n_axes(self) -> int:
        """Positions per token: time, height, width and one more, or time alone."""
        return 4 if self & RopeMode.MROPE else 1


@op("rope")
@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotate pairs of elements by angles that grow with the token's position.

        y[a] = x[a] cos(t_i) - x[b] sin(t_i),  y[b] = x[a] sin(t_i) + x[b] cos(t_i)
        t_i = pos * freq_base^(-2i / n_dims) / freq_factors[i]          for pair i = (a, b)

    x [D, H, T, S] f32 or f16, pos [T] i32 ([4T] for the modes with four axes: all times, then all
    heights ...), freq_factors [at least n_dims / 2] f32, optional  ->  y like x, contiguous. Only
    n_dims elements are rotated, those from n_offs on; the others are copied.

    YaRN (Peng et al., 2023), for n_ctx_orig positions in training: with f = freq_scale * t_i,
        t_i <- f (1 - mix_i) + t_i mix_i,   mix_i = ext_factor * (1 - clamp((i - lo) / (hi - lo)))
        lo, hi = floor, ceil of n_dims ln(n_ctx_orig / (beta 2 pi)) / (2 ln freq_base) for
        beta = beta_fast, beta_slow, held within 0 and n_dims - 1
    and cos and sin are scaled by attn_factor * (1 + 0.1 ln(1 / freq_scale)). With ext_factor 0 the
    angle is f and the scale attn_factor. Angles are computed by one power per pair, in float64.

    Raises ShapeError unless rows are contiguous, n_dims is even and fits (D / 2 for VISION), pos
    has a number for every token, sections are given exactly for the modes that use them, and
    YaRN's logarithms exist.
    Source: Su et al., 2021.
    """

    in_place = True

    n_dims: int
    mode: RopeMode
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    sections: Dims = (0, 0, 0, 0)  # numbers of pairs for time, height, width, and the fourth axis
    n_offs: int = 0  # elements before those that are rotated

    def infer(self, x: Spec, pos: Spec, freq_factors: Spec | None = None) -> Spec:
        require(x.type in (F32, F16), "x must be f32 or f16")
        require(x.rows_contiguous, "x must have contiguous rows")
        n, limit = self.n_dims, x.ne[0]
        require(0 < n <= limit and n % 2 == 0, f"n_dims is {n}: it must be even, 2 to {limit}")
        require(
            0 <= self.n_offs <= limit - n and self.n_offs % 2 == 0,
            f"n_offs is {self.n_offs}: it must be even, 0 to {limit - n}",
        )
        if self.mode is RopeMode.VISION:
            require(2 * n == limit, f"n_dims is {n}: it must be half of {limit} in mode VISION")
            require(self.n_offs == 0, f"n_offs is {self.n_offs}: it must be 0 in mode VISION")
        n_pos = self.mode.n_axes * x.ne[2]
        require(
            pos.type is I32 and pos.ne == (n_pos, 1, 1, 1),
            f"pos must be i32 [{n_pos}]: {self.mode.n_axes} for each of {x.ne[2]} tokens",
        )
        if freq_factors is not None:
            require(
                freq_factors.type is F32 and freq_factors.contiguous,
                "freq_factors must be f32 and contiguous",
            )
            require(
                freq_factors.ne[0] >= self.n_pairs,
                f"freq_factors has {freq_factors.ne[0]} entries: it must have {self.n_pairs}",
            )
        self._check_parameters()
        return Spec(x.ne, x.type)

    def _check_parameters(self) -> None:
        multi = self.mode.n_axes > 1
        require(
            any(n > 0 for n in self.sections[:3]) if multi else not any(self.sections),
            f"sections are {list(self.sections)}: mode {self.mode.name} "
            + ("needs one of the first three" if multi else "has none"),
        )
        require(min(self.sections) >= 0, f"sections are {list(self.sections)}: none may be below 0")
        if self.ext_factor != 0:
            require(
                self.n_ctx_orig > 0 and self.beta_fast > 0 and self.beta_slow > 0,
                f"ext_factor is {self.ext_factor:g}: YaRN needs n_ctx_orig, beta_fast and "
                "beta_slow above 0",
            )
            require(
                1 < self.freq_base < math.inf and 0 < self.freq_scale < math.inf,
                f"ext_factor is {self.ext_factor:g}: YaRN needs freq_base above 1 and freq_scale "
                f"above 0, they are {self.freq_base:g} and {self.freq_scale:g}",
            )

    @property
    def n_pairs(self) -> int:
        return self.n_dims if self.mode is RopeMode.VISION else self.n_dims // 2

    def reference(self, x: Array, pos: Array, freq_factors: Array | None = None) -> Array:
        angles, scale = self.angles(pos, freq_factors)
        cos = (np.cos(angles) * scale)[None, :, None, :]  # numpy order [1, T, 1, pairs]
        sin = (np.sin(angles) * scale)[None, :, None, :]
        y = x.astype(np.float64)
        first, second = self.pairs()
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first] = a * cos - b * sin
        y[..., second] = a * sin + b * cos
        return y

    def pairs(self) -> tuple[slice, slice]:
        """The first and the second elements of all pairs."""
        start, n = self.n_offs, self.n_pairs
        if self.mode is RopeMode.NORMAL:
            return slice(start, start + 2 * n, 2), slice(start + 1, start + 2 * n, 2)
        return slice(start, start + n), slice(start + n, start + 2 * n)

    def angles(self, pos: Array, freq_factors: Array | None) -> tuple[Array, float]:
        """The angle of each pair, numpy order [T, n_pairs], and the scale of cos and sin."""
        axis, exponent = self._axes()
        position = pos.reshape(self.mode.n_axes, -1)[axis].T.astype(np.float64)
        theta = position * self.freq_base ** (-2.0 * exponent / self.n_dims)
        if freq_factors is not None:
            theta = theta / freq_factors.reshape(-1)[: self.n_pairs].astype(np.float64)
        interpolated = self.freq_scale * theta
        if self.ext_factor == 0:
            return interpolated, self.attn_factor
        mix = self.yarn_ramp() * self.ext_factor
        angles = interpolated * (1 - mix) + theta * mix
        return angles, self.attn_factor * (1 + 0.1 * math.log(1 / self.freq_scale))

    def yarn_ramp(self) -> Array:
        """For each pair: 1 where it keeps its angle, 0 where the angle is interpolated."""

        def pair_with(n_rotations: float) -> float:  # over the training context
            wavelengths = math.log(self.n_ctx_orig / (n_rotations * 2 * math.pi))
            return self.n_dims * wavelengths / (2 * math.log(self.freq_base))

        low = max(0, math.floor(pair_with(self.beta_fast)))
        high = min(self.n_dims - 1, math.ceil(pair_with(self.beta_slow)))
        i = np.arange(self.n_pairs, dtype=np.float64)
        return 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)

    def _axes(self) -> tuple[Array, Array]:
        """For each pair: the axis of the position that rotates it, and the power of its angle."""
        i = np.arange(self.n_pairs)
        if self.mode.n_axes == 1:
            return np.zeros_like(i), i
        ends = np.cumsum(self.sections)
        sector = i % ends[-1]
        axis = np.searchsorted(ends, sector, side="right")
        if self.mode is RopeMode.IMROPE:  # t h w t h w ..., each up to the length of its section
            cycled = sector % 3
            within = sector < 3 * np.array(self.sections)[cycled]
            return np.where(within, cycled, 3), i
        if self.mode is RopeMode.VISION:
            return axis, sector - (ends - self.sections)[axis]
        return axis, i


@op("rope_back")
@dataclass(frozen=True, slots=True)
class RopeBack(Rope):
    """The gradient of rope: the same scale, and angles of the other sign; see Rope."""

    def angles(self, pos: Array, freq_factors: Array | None) -> tuple[Array, float]:
        """The angle of each pair, numpy order [T, n_pairs], and the scale of cos and sin."""
        angles, scale = Rope.angles(self, pos, freq_factors)
        return -angles, scale


@checked
def rope(a: Tensor, b: Tensor, n_dims: int, mode: int) -> Tensor:
    """`ggml_rope`: b the positions, base 10000; see Rope."""
    return rope_ext(a, b, None, n_dims, mode, 0, 10000.0, 1.0, 0.0, 1.0, 0.0, 0.0)


@checked
def rope_ext(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    mode: int,
    n_ctx_orig: int,
    freq_base: float,
    freq_scale: float,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """`ggml_rope_ext`: b the positions, c the frequency factors or None; see Rope."""
    made = Rope(
        n_dims,
        _known_mode(mode),
        n_ctx_orig,
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    )
    return made.node(a, b) if c is None else made.node(a, b, c)


@checked
def rope_custom(
    a: Tensor,
    b: Tensor,
    n_dims: int,
    mode: int,
    n_ctx_orig: int,
    freq_base: float,
    freq_scale: float,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """`ggml_rope_custom`: rope_ext without frequency factors, which ggml recommends instead."""
    yarn = ext_factor, attn_factor, beta_fast, beta_slow
    return rope_ext(a, b, None, n_dims, mode, n_ctx_orig, freq_base, freq_scale, *yarn)


@checked
def rope_multi(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    sections: Sequence[int],
    mode: int,
    n_ctx_orig: int,
    freq_base: float,
    freq_scale: float,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """`ggml_rope_multi`: rope_ext with `sections`, for positions of four axes; see Rope."""
    require(len(sections) == 4, f"rope: there are {len(sections)} sections: there must be 4")
    time, height, width, extra = sections
    made = Rope(
        n_dims,
        _known_mode(mode),
        n_ctx_orig,
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
        (time, height, width, extra),
    )
    return made.node(a, b) if c is None else made.node(a, b, c)


@checked
def rope_ext_back(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    mode: int,
    n_ctx_orig: int,
    freq_base: float,
    freq_scale: float,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """`ggml_rope_ext_back`: a the gradient of rope_ext's result; see RopeBack."""
    made = RopeBack(
        n_dims,
        _known_mode(mode),
        n_ctx_orig,
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    )
    return made.node(a, b) if c is None else made.node(a, b, c)


@checked
def rope_multi_back(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    sections: Sequence[int],
    mode: int,
    n_ctx_orig: int,
    freq_base: float,
    freq_scale: float,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """`ggml_rope_multi_back`: a the gradient of rope_multi's result; see RopeBack."""
    require(len(sections) == 4, f"rope_back: there are {len(sections)} sections: there must be 4")
    time, height, width, extra = sections
    made = RopeBack(
        n_dims,
        _known_mode(mode),
        n_ctx_orig,
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
        (time, height, width, extra),
    )
    return made.node(a, b) if c is None else made.node(a, b, c)


@checked
def rope_set_offset(a: Tensor, n_offs: int) -> Tensor:
    """`ggml_rope_set_offset`: the node `a` of rope or rope_back rotates elements from n_offs on.

    Sets it in place, as in ggml, and returns `a`. See Rope.
    """
    require(isinstance(a.op, Rope), f"rope_set_offset: a must be a result of rope, is {a!r}")
    assert isinstance(a.op, Rope)
    a.op = dataclasses.replace(a.op, n_offs=n_offs).node(*a.src).op
    return a


def _known_mode(mode: int) -> RopeMode:
    known = [int(m) for m in RopeMode]
    require(mode in known, f"rope: mode is {mode}: it must be one of {known}")
    return RopeMode(mode)
