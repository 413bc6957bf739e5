"""Windows of images and relative positions, as the Segment Anything Model has them.

Source: Kirillov et al., 2023; Li et al., "Exploring Plain Vision Transformer Backbones", 2022.
Letters: C channels, W width, H height, w the side of a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32


@op("win_part")
@dataclass(frozen=True, slots=True)
class WinPart(Op):
    """An image cut into square windows, padded with zeros at the right and below.

        y[c, i, j, py * npx + px] = x[c, px * w + i, py * w + j]
        x [C, W, H] f32  ->  y [C, w, w, npx * npy],  npx = ceil(W / w), npy = ceil(H / w)

    Raises ShapeError unless x is f32 and contiguous with at most 3 dimensions, and w at least 1.
    """

    w: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.contiguous, "x must be f32 and contiguous")
        require(x.ne[3] == 1, "x must have at most 3 dimensions")
        require(self.w >= 1, f"w is {self.w}: it must be at least 1")
        n_windows = -(-int(x.ne[1]) // self.w) * -(-int(x.ne[2]) // self.w)
        return Spec((x.ne[0], self.w, self.w, n_windows), F32)

    def reference(self, x: Array) -> Array:
        _, height, width, n_channels = x.shape
        w, nx, ny = self.w, -(-width // self.w), -(-height // self.w)
        padded = np.pad(x[0], ((0, ny * w - height), (0, nx * w - width), (0, 0)))
        windows = padded.reshape(ny, w, nx, w, n_channels).transpose(0, 2, 1, 3, 4)
        return windows.reshape(ny * nx, w, w, n_channels)


@op("win_unpart")
@dataclass(frozen=True, slots=True)
class WinUnpart(Op):
    """The image of win_part's windows, without the padding.

        x [C, w, w, npx * npy] f32  ->  y [C, w0, h0],  npx = ceil(w0 / w), npy = ceil(h0 / w)

    Raises ShapeError unless x is f32 and contiguous and has the windows of such an image.
    """

    w0: int
    h0: int
    w: int

    def infer(self, x: Spec) -> Spec:
        require(x.type is F32 and x.contiguous, "x must be f32 and contiguous")
        require(
            min(self.w0, self.h0, self.w) >= 1,
            f"w0, h0 and w are {self.w0}, {self.h0} and {self.w}: they must be at least 1",
        )
        n_windows = -(-self.w0 // self.w) * -(-self.h0 // self.w)
        require(
            x.ne[1:] == (self.w, self.w, n_windows),
            f"x must be [{x.ne[0]}, {self.w}, {self.w}, {n_windows}]: the windows of "
            f"{self.w0} by {self.h0}",
        )
        return Spec((x.ne[0], self.w0, self.h0), F32)

    def reference(self, x: Array) -> Array:
        w, nx, ny = self.w, -(-self.w0 // self.w), -(-self.h0 // self.w)
        rows = x.reshape(ny, nx, w, w, -1).transpose(0, 2, 1, 3, 4)
        return rows.reshape(1, ny * w, nx * w, -1)[:, : self.h0, : self.w0]


@op("get_rel_pos")
@dataclass(frozen=True, slots=True)
class GetRelPos(Op):
    """The embeddings of relative positions, of n queries to n keys.

        y[c, k, q] = x[c, n - 1 - k + q]          x [C, 2 n - 1] f16 or f32  ->  y [C, n, n]

    (ggml's is f16 alone.) Raises ShapeError for other shapes and types, and unless rows are
    contiguous.
    """

    n: int

    def infer(self, x: Spec) -> Spec:
        require(x.type in (F16, F32) and x.rows_contiguous, "x must be f16 or f32, its rows whole")
        require(x.ne[2:] == (1, 1), "x must have at most 2 dimensions")
        require(
            self.n >= 1 and x.ne[1] == 2 * self.n - 1,
            f"dimension 1 of x is {x.ne[1]}: it must be {2 * self.n - 1}",
        )
        return Spec((x.ne[0], self.n, self.n), x.type)

    def reference(self, x: Array) -> Array:
        i = np.arange(self.n)
        return x[:, 0, self.n - 1 - i[None, :] + i[:, None]]


@op("add_rel_pos")
@dataclass(frozen=True, slots=True)
class AddRelPos(Op):
    """Scores of a query image's pixels to a key image's, with the biases of rows and columns.

        y[h * n + w, i, p] = a[h * n + w, i, p] + pw[w, i, p] + ph[h, i, p]
        a [n * n, I, P], pw and ph [n, I1, I2, P] with I = I1 * I2, all f32 and contiguous

    Raises ShapeError for other shapes and types.
    """

    in_place = True

    def infer(self, a: Spec, pw: Spec, ph: Spec) -> Spec:
        for name, spec in (("a", a), ("pw", pw), ("ph", ph)):
            require(spec.type is F32 and spec.contiguous, f"{name} must be f32 and contiguous")
        require(pw.ne == ph.ne, "pw and ph must have the same shape")
        n, n1, n2, n_images = pw.ne
        require(
            a.ne == (n * n, n1 * n2, n_images, 1),
            f"a must be [{n * n}, {n1 * n2}, {n_images}]: the scores of {n} by {n} keys",
        )
        return Spec(a.ne, F32)

    def reference(self, a: Array, pw: Array, ph: Array) -> Array:
        n = pw.shape[3]
        shape = (1, a.shape[1], a.shape[2], n, n)
        wide = a.astype(np.float64).reshape(shape)
        of_columns = pw.astype(np.float64).reshape(*shape[:3], 1, n)
        of_rows = ph.astype(np.float64).reshape(*shape[:3], n, 1)
        y: Array = wide + of_columns + of_rows
        return y.reshape(a.shape)


@checked
def win_part(a: Tensor, w: int) -> Tensor:
    """`ggml_win_part`; see WinPart."""
    return WinPart(w).node(a)


@checked
def win_unpart(a: Tensor, w0: int, h0: int, w: int) -> Tensor:
    """`ggml_win_unpart`; see WinUnpart."""
    return WinUnpart(w0, h0, w).node(a)


@checked
def get_rel_pos(a: Tensor, qh: int, kh: int) -> Tensor:
    """`ggml_get_rel_pos`: qh and kh must be equal, as in ggml; see GetRelPos."""
    require(qh == kh, f"get_rel_pos: qh and kh are {qh} and {kh}: they must be equal")
    return GetRelPos(qh).node(a)


@checked
def add_rel_pos(a: Tensor, pw: Tensor, ph: Tensor) -> Tensor:
    """`ggml_add_rel_pos`; see AddRelPos."""
    return AddRelPos().node(a, pw, ph)
