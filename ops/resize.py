"""Images of another size, and embeddings of time steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32

_ALPHA = -0.75  # of the bicubic kernel, as in PyTorch


class ScaleMode(IntEnum):
    """ggml's numbers."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2


class ScaleFlag(IntFlag):
    """ggml's numbers, added to a mode."""

    NONE = 0
    ALIGN_CORNERS = 256
    ANTIALIAS = 512


@op("upscale")
@dataclass(frozen=True, slots=True)
class Upscale(Op):
    """An image of any other size; dimensions 2 and 3 take the nearest planes.

        y[i0, i1, i2, i3] = sum_(j1) w1[i1, j1] sum_(j0) w0[i0, j0] x[j0, j1, floor(i2 / s2), ...]

    with s = ne / x.ne, f32, and along dimensions 0 and 1, for the position p of i in x:

        NEAREST      p = i / s                      the weight of floor(p) is 1
        BILINEAR     p = (i + 0.5) / s - 0.5        1 - f, f of floor(p) and the next; f is its rest
        BICUBIC      the same p                     the cubic kernel of 4 (Keys, 1981; a = -0.75)
        ANTIALIAS    with BILINEAR: the triangle, made as wide as an element of y where it is wider

    Elements beyond an edge are those at the edge. With ALIGN_CORNERS s is (ne - 1) / (x.ne - 1),
    and p is i / s. Positions are computed in f32, as in ggml.

    x [...] f32 with contiguous rows  ->  y [ne] f32. Raises ShapeError for other types.
    """

    ne: Dims
    mode: ScaleMode
    flags: ScaleFlag

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.rows_contiguous, "x must be f32 with contiguous rows")
        is_smooth = self.mode is ScaleMode.BILINEAR
        require(
            is_smooth or not self.flags & ScaleFlag.ANTIALIAS,
            f"mode is {self.mode.name}: ANTIALIAS is for BILINEAR",
        )
        return Spec(self.ne, F32)

    def reference(self, x: Array) -> Array:
        planes = [self.nearest(dim, n) for dim, n in ((3, x.shape[0]), (2, x.shape[1]))]
        picked = x.astype(np.float64)[planes[0]][:, planes[1]]
        columns = self.weights(0, x.shape[3])  # [ne0, n0]
        rows = self.weights(1, x.shape[2])
        y: Array = np.einsum("ir,abrc,jc->abij", rows, picked, columns, optimize=True)
        return y

    def nearest(self, dim: int, n: int) -> Array:
        """For each index along a dimension that of the nearest of n elements."""
        scale = self._scale(dim, n)
        index: Array = (np.arange(self.ne[dim], dtype=np.float32) / scale).astype(np.int64)
        nearest: Array = np.minimum(index, n - 1)
        return nearest

    def weights(self, dim: int, n: int) -> Array:
        """w [ne, n], the weight of each of x's n elements along dimension 0 or 1."""
        weights = np.zeros((int(self.ne[dim]), n))
        index = np.arange(self.ne[dim])
        if self.mode is ScaleMode.NEAREST:
            weights[index, self.nearest(dim, n)] = 1
        elif self.flags & ScaleFlag.ANTIALIAS:
            self._add_triangles(weights, dim)
        else:
            position = self._positions(dim, n)
            first = np.floor(position)
            rest = (position - first).astype(np.float64)
            if self.mode is ScaleMode.BILINEAR:
                _add_taps(weights, first, [(0, 1 - rest), (1, rest)])
            else:
                taps = [(k, _cubic(np.abs(rest - k))) for k in (-1, 0, 1, 2)]
                _add_taps(weights, first, taps)
        return weights

    def _scale(self, dim: int, n: int) -> np.float32:
        """Elements of y for one of x."""
        n_y = int(self.ne[dim])
        aligned = self.flags & ScaleFlag.ALIGN_CORNERS and dim < 2 and n_y > 1 and n > 1
        return (
            np.float32(n_y - 1) / np.float32(n - 1) if aligned else np.float32(n_y) / np.float32(n)
        )

    def _positions(self, dim: int, n: int) -> Array:
        half = np.float32(0 if self.flags & ScaleFlag.ALIGN_CORNERS else 0.5)
        index = np.arange(self.ne[dim], dtype=np.float32)
        position: Array = (index + half) / self._scale(dim, n) - half
        return position

    def _add_triangles(self, weights: Array, dim: int) -> None:
        """Triangles of the width of one element of y, or of x if that is wider; they sum to 1."""
        n = weights.shape[1]
        half = np.float32(0 if self.flags & ScaleFlag.ALIGN_CORNERS else 0.5)
        scale = self._scale(dim, n)
        support = max(np.float32(1), np.float32(1) / scale)
        centre = (np.arange(self.ne[dim], dtype=np.float32) + half) / scale
        first = np.maximum(np.trunc(centre - support + half), 0)[:, None]
        end = np.minimum(np.trunc(centre + support + half), n)[:, None]
        j = np.arange(n)
        distance = (j - centre[:, None].astype(np.float64) + float(half)) / float(support)
        weights[...] = np.maximum(1 - np.abs(distance), 0) * ((j >= first) & (j < end))
        total = weights.sum(axis=1, keepdims=True)
        weights /= np.where(total > 0, total, 1)


def _add_taps(weights: Array, first: Array, taps: list[tuple[int, Array]]) -> None:
    """Add the weights of elements `first` + k, held within the edges."""
    rows = np.arange(len(weights))
    for k, weight in taps:
        np.add.at(weights, (rows, np.clip(first + k, 0, weights.shape[1] - 1).astype(int)), weight)


def _cubic(distance: Array) -> Array:
    """Keys' kernel."""
    d, a = distance, _ALPHA
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, far)


@op("timestep_embedding")
@dataclass(frozen=True, slots=True)
class TimestepEmbedding(Op):
    """Cosines and sines of a time step, at falling frequencies.

        y[j, i] = cos(x[i] f_j),  y[h + j, i] = sin(x[i] f_j),  f_j = max_period^(-j / h)
        for j < h = dim // 2, and 0 in the last place of an odd dim
        x [n] f32  ->  y [dim, n] f32

    Raises ShapeError unless x is f32 [n], and dim and max_period are at least 1. Source: Vaswani
    et al., 2017, as in diffusion models.
    """

    dim: int
    max_period: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.contiguous, "x must be f32 and contiguous")
        require(x.ne[1:] == (1, 1, 1), "x must have one dimension")
        require(
            self.dim >= 1 and self.max_period >= 1,
            f"dim and max_period are {self.dim} and {self.max_period}: they must be at least 1",
        )
        return Spec((self.dim, x.ne[0]), F32)

    def frequencies(self) -> Array:
        """f_j, [dim // 2]."""
        half = self.dim // 2
        return np.exp(-math.log(self.max_period) * np.arange(half) / max(half, 1))

    def reference(self, x: Array) -> Array:
        angles = x[0, 0, 0].astype(np.float64)[:, None] * self.frequencies()
        rest = np.zeros((len(angles), self.dim % 2))
        y: Array = np.concatenate([np.cos(angles), np.sin(angles), rest], axis=1)
        return y[None, None]


@checked
def upscale(a: Tensor, scale_factor: int, mode: int) -> Tensor:
    """`ggml_upscale`: dimensions 0 and 1 times scale_factor; see Upscale."""
    require(scale_factor >= 1, f"upscale: scale_factor is {scale_factor}: it must be at least 1")
    n0, n1, n2, n3 = a.ne
    return interpolate(a, n0 * scale_factor, n1 * scale_factor, n2, n3, mode)


@checked
def interpolate(a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int, mode: int) -> Tensor:
    """`ggml_interpolate`: mode 0 nearest, 1 bilinear, 2 bicubic; plus 256 to align corners, plus
    512 for antialiasing; see Upscale."""
    kind, flags = mode & 0xFF, mode & ~0xFF
    known = int(ScaleFlag.ALIGN_CORNERS | ScaleFlag.ANTIALIAS)
    require(
        kind in [int(m) for m in ScaleMode] and flags & ~known == 0,
        f"interpolate: mode is {mode}: it must be 0 to 2, plus 256, 512 or both",
    )
    made = Upscale(as_ne((ne0, ne1, ne2, ne3)), ScaleMode(kind), ScaleFlag(flags))
    return made.node(a)


@checked
def timestep_embedding(timesteps: Tensor, dim: int, max_period: int) -> Tensor:
    """`ggml_timestep_embedding`; see TimestepEmbedding."""
    return TimestepEmbedding(dim, max_period).node(timesteps)
