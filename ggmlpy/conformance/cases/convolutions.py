"""Convolutions and pooling."""

from __future__ import annotations

from typing import Any

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Tensor


@builds("pool_2d")
@builds("pool_1d")
def _pool(case: Case, inputs: Inputs) -> Tensor:
    """params: pool, which is ggml's `op`, and the others of the function."""
    params = {"op" if k == "pool" else k: v for k, v in case.params.items()}
    function = ops.pool_2d if case.op == "pool_2d" else ops.pool_1d
    return function(inputs[0], **params)


@builds("pool_2d_back")
def _pool_2d_back(case: Case, inputs: Inputs) -> Tensor:
    """ne: the gradient, pool_2d's source; params as of pool_2d."""
    params = {"op" if k == "pool" else k: v for k, v in case.params.items()}
    return ops.pool_2d_back(inputs[0], inputs[1], **params)


@builds("conv_2d_dw_direct")
def _conv_2d_dw(case: Case, inputs: Inputs) -> Tensor:
    """ne: kernel, x; params: channels="x" for channels of x side by side, "kernel" for both."""
    kernel, x = inputs[0], inputs[1]
    where = case.params.get("channels")
    if where:
        x = ops.permute(ops.cont(ops.permute(x, 1, 2, 0, 3)), 2, 0, 1, 3)
    if where == "kernel":
        kernel = ops.permute(ops.cont(ops.permute(kernel, 1, 2, 3, 0)), 3, 0, 1, 2)
    numbers = [v for k, v in case.params.items() if k != "channels"]
    return ops.conv_2d_dw_direct(kernel, x, *numbers)


def _steps(*numbers: int) -> dict[str, Any]:
    """Strides, paddings and dilations by their names: two or three of each."""
    n = len(numbers) // 3
    return {f"{name}{i}": numbers[j * n + i] for j, name in enumerate("spd") for i in range(n)}


def _dw_steps(*numbers: int) -> dict[str, Any]:
    names = ("stride0", "stride1", "pad0", "pad1", "dilation0", "dilation1")
    return dict(zip(names, numbers, strict=True))


# Input, kernel, then strides, paddings and dilations: (W, H, IC, N), (KW, KH, IC, OC).
_IMAGES = (
    ((5, 7, 3, 2), (3, 3, 3, 4), (1, 1, 1, 1, 1, 1)),
    ((20, 12, 3, 2), (3, 3, 3, 5), (1, 1, 0, 0, 1, 1)),
    ((13, 11, 2, 1), (5, 3, 2, 1), (2, 3, 2, 1, 1, 1)),
    ((33, 9, 7, 1), (3, 1, 7, 9), (1, 1, 1, 0, 1, 1)),
    ((17, 17, 4, 3), (2, 4, 4, 6), (2, 2, 0, 1, 2, 1)),
    ((41, 6, 1, 1), (7, 2, 1, 3), (3, 1, 3, 1, 1, 2)),
    ((1, 1, 5, 2), (1, 1, 5, 3), (1, 1, 0, 0, 1, 1)),
    ((64, 64, 3, 1), (16, 16, 3, 8), (16, 16, 0, 0, 1, 1)),
    ((35, 3, 16, 1), (3, 3, 16, 13), (1, 1, 1, 1, 1, 1)),
    ((100, 2, 2, 1), (4, 1, 2, 2), (1, 1, 5, 0, 3, 1)),
)
_VOLUMES = (  # (W, H, D), (KW, KH, KD), channels, batch, channels of the result, steps
    ((7, 6, 5), (3, 2, 2), 2, 2, 3, (1, 1, 1, 0, 0, 0, 1, 1, 1)),
    ((11, 5, 4), (3, 3, 3), 3, 1, 4, (2, 1, 1, 1, 1, 1, 1, 1, 1)),
    ((20, 7, 6), (2, 3, 1), 1, 2, 5, (1, 2, 3, 1, 2, 0, 3, 1, 1)),
    ((33, 3, 3), (3, 3, 3), 5, 1, 2, (1, 1, 1, 1, 1, 1, 1, 1, 1)),
    ((1, 1, 1), (1, 1, 1), 4, 1, 3, (1, 1, 1, 0, 0, 0, 1, 1, 1)),
)
_CHANNELS: list[dict[str, Any]] = [{}, {"channels": "x"}, {"channels": "kernel"}]
_SIGNALS = (  # (L, IC, N), (K, IC, OC), s0, p0, d0
    ((19, 3, 2), (3, 3, 4), 1, 1, 1),
    ((33, 7, 1), (5, 7, 2), 2, 2, 1),
    ((40, 2, 3), (4, 2, 5), 3, 0, 2),
    ((3000, 8, 1), (3, 8, 4), 1, 1, 1),
    ((1, 1, 1), (1, 1, 1), 1, 0, 1),
)


def _windows() -> list[Case]:
    cases = []
    for (w, h, c, n), kernel, steps in _IMAGES:
        for t in ("f32", "f16"):
            for to in ("f32", "f16"):
                s0, s1, p0, p1, d0, d1 = steps
                cases.append(
                    Case("im2col", ne=[kernel, (w, h, c, n)], types=("f16", t), s0=s0, s1=s1,
                         p0=p0, p1=p1, d0=d0, d1=d1, is_2D=True, dst_type=to)
                )  # fmt: skip
    for x, (k, c, oc), s0, p0, d0 in _SIGNALS:
        for t, to in (("f32", "f32"), ("f32", "f16"), ("f16", "f16")):
            cases.append(
                Case("im2col", ne=[(k, c, oc), x], types=("f16", t), s0=s0, s1=1, p0=p0, p1=0,
                     d0=d0, d1=1, is_2D=False, dst_type=to)
            )  # fmt: skip
    for (w, h, d), (kw, kh, kd), c, n, oc, of_axes in _VOLUMES:
        for t, to in (("f32", "f32"), ("f32", "f16"), ("f16", "f32")):
            cases.append(
                Case("im2col_3d", ne=[(kw, kh, kd, c * oc), (w, h, d, c * n)], types=("f16", t),
                     IC=c, **_steps(*of_axes), dst_type=to)
            )  # fmt: skip
    return cases


def _lanes() -> list[Case]:
    """Windows at, below and above 16 columns; strided x; more padding than x; > 65,535 rows."""
    cases = []
    for w, size, stride, padding in ((16, 16, 16, 0), (48, 16, 1, 0), (35, 17, 1, 0),
                                     (70, 33, 2, 3), (31, 15, 1, 1), (3, 7, 1, 9)):  # fmt: skip
        for t, to in (("f32", "f32"), ("f32", "f16"), ("f16", "f32"), ("f16", "f16")):
            cases.append(
                Case("im2col", ne=[(size, 2, 3), (w, 4, 3, 2)], types=("f16", t), s0=stride, s1=1,
                     p0=padding, p1=1, d0=1, d1=1, is_2D=True, dst_type=to)
            )  # fmt: skip
    for layout in ("view", "permuted"):
        cases += [
            Case("im2col", ne=[(3, 3, 2), (37, 5, 2, 3)], types=("bf16", t), layouts=("", layout),
                 s0=1, s1=1, p0=1, p1=1, d0=1, d1=1, is_2D=True, dst_type=to)
            for t, to in (("f32", "f32"), ("f16", "f16"))
        ]  # fmt: skip
        cases.append(
            Case("im2col_3d", ne=[(3, 2, 2, 4), (19, 5, 3, 4)], types=("bf16", "f32"),
                 layouts=("", layout), IC=2, **_steps(1, 1, 1, 1, 1, 0, 1, 1, 1), dst_type="f16")
        )  # fmt: skip
    cases.append(
        Case("im2col", ne=[(2, 2, 1), (262, 257, 1)], types=("f16", "f32"), s0=1, s1=1, p0=0, p1=0,
             d0=1, d1=1, is_2D=True, dst_type="f16")
    )  # fmt: skip
    return cases


def _back() -> list[Case]:
    """The gradients of the images, and of the signals."""
    cases = []
    for x, (kw, kh, c, oc), (s0, s1, p0, p1, d0, d1) in _IMAGES:
        out_w = (x[0] + 2 * p0 - d0 * (kw - 1) - 1) // s0 + 1
        out_h = (x[1] + 2 * p1 - d1 * (kh - 1) - 1) // s1 + 1
        cases.append(
            Case("im2col_back", ne=[(c * kh * kw, out_w, out_h, x[3]), (kw, kh, c, oc)], to=x,
                 s0=s0, s1=s1, p0=p0, p1=p1, d0=d0, d1=d1, is_2D=True)
        )  # fmt: skip
    for x1, (k, c, oc), s0, p0, d0 in _SIGNALS:
        out_w = (x1[0] + 2 * p0 - d0 * (k - 1) - 1) // s0 + 1
        cases.append(
            Case("im2col_back", ne=[(c * k, out_w, x1[2]), (k, c, oc)], to=(*x1, 1),
                 s0=s0, s1=1, p0=p0, p1=0, d0=d0, d1=1, is_2D=False)
        )  # fmt: skip
    return cases


@builds("im2col_back")
def _im2col_back(case: Case, inputs: Inputs) -> Tensor:
    """ne: gradient, kernel; params: to, the shape of the input."""
    params = {k: v for k, v in case.params.items() if k != "to"}
    return ops.im2col_back(inputs[0], inputs[1], as_ne(case.params["to"]), **params)


CASES: list[Case] = [
    *_windows(),
    *_lanes(),
    *_back(),
    *(Case("col2im_1d", ne=[(oc * k, n)], types=(t,), s0=s0, oc=oc, p0=p0)
      for t in ("f32", "f16", "bf16")
      for oc, k, n, s0, p0 in ((4, 3, 12, 1, 0), (3, 5, 7, 2, 1), (1, 4, 9, 4, 2), (7, 2, 33, 3, 0),
                               (16, 7, 1, 2, 3), (2, 8, 100, 1, 3))),
    *(Case("conv_2d_direct", ne=[kernel, x], types=(t, "f32"), **_steps(*steps))
      for t in ("f32", "f16") for x, kernel, steps in _IMAGES),
    *(Case("conv_2d", ne=[kernel, x], types=(t, "f32"), **_steps(*steps))
      for t in ("f32", "f16") for x, kernel, steps in _IMAGES),
    Case("conv_2d_direct", ne=[(3, 3, 2, 3), (11, 9, 2, 2)], layouts=("", "view"),
         **_steps(1, 1, 1, 1, 1, 1)),
    Case("conv_2d_direct", ne=[(3, 3, 2, 3), (11, 9, 2, 2)], layouts=("", "permuted"),
         **_steps(2, 1, 1, 1, 1, 1)),
    *(Case("conv_3d_direct", ne=[(3, 2, 2, 6), (11, 5, 4, 4)], layouts=("", layout),
           **_steps(1, 2, 1, 1, 0, 1, 1, 1, 1), n_channels=2, n_batch=2, n_channels_out=3)
      for layout in ("view", "permuted")),
    *(Case("conv_transpose_2d_p0", ne=[(3, 2, 5, 3), (37, 3, 3, 2)], types=(t, "f32"),
           layouts=("", layout), stride=2)
      for t in ("f32", "f16") for layout in ("view", "permuted")),
    Case("conv_transpose_1d", ne=[(5, 3, 4), (37, 4)], types=("f16", "f32"), layouts=("", "view"),
         s0=2, p0=0, d0=1),
    Case("pool_1d", ne=[(3, 70_001)], pool=1, k0=2, s0=1, p0=1),
    *(Case(op, ne=[(5, 4, 6, 8), (30, 20, 6, 2)], types=("f16", "f32"))
      for op in ("conv_2d_sk_p0", "conv_2d_s1_ph")),
    *(Case("conv_2d_dw_direct", ne=[(kw, kh, 1, c), (w, h, c, n)], types=(t, "f32"),
           **_dw_steps(*steps), **channels)
      for t in ("f32", "f16")
      for (w, h, c, n), (kw, kh, _, _), steps in _IMAGES
      for channels in _CHANNELS if not channels or c * w > 1),
    *(Case("conv_2d_dw", ne=[(kw, kh, 1, c), (w, h, c, n)], types=(t, "f32"), **_steps(*steps))
      for t in ("f32", "f16") for (w, h, c, n), (kw, kh, _, _), steps in _IMAGES),
    *(Case("conv_3d_direct", ne=[(*kernel, c * oc), (*x, c * n)], types=(t, "f32"),
           **_steps(*steps), n_channels=c, n_batch=n, n_channels_out=oc)
      for t in ("f32", "f16") for x, kernel, c, n, oc, steps in _VOLUMES),
    *(Case("conv_3d", ne=[(*kernel, c * oc), (*x, c * n)], types=(t, "f32"), IC=c, **_steps(*steps))
      for t in ("f32", "f16") for x, kernel, c, n, oc, steps in _VOLUMES),
    *(Case("conv_1d", ne=[kernel, x], types=(t, "f32"), s0=s0, p0=p0, d0=d0)
      for t in ("f32", "f16") for x, kernel, s0, p0, d0 in _SIGNALS),
    *(Case("conv_1d_ph", ne=[(5, 3, 4), (21, 3, 2)], types=(t, "f32"), s=1, d=1)
      for t in ("f32", "f16")),
    *(Case("conv_1d_dw", ne=[(k, 1, c), (n, c)], types=(t, "f32"), s0=s0, p0=p0, d0=d0)
      for t in ("f32", "f16") for (n, c, _), (k, _, _), s0, p0, d0 in _SIGNALS),
    Case("conv_1d_dw_ph", ne=[(5, 1, 3), (21, 3)], types=("f16", "f32"), s0=1, d0=1),
    *(Case("conv_transpose_1d", ne=[(k, oc, c), (n, c)], types=(t, "f32"), s0=s0, p0=0, d0=1)
      for t in ("f32", "f16")
      for k, oc, c, n, s0 in ((4, 3, 2, 19, 1), (3, 2, 5, 33, 2), (16, 4, 3, 7, 8), (2, 3, 2, 9, 5),
                              (1, 1, 1, 1, 1), (5, 7, 32, 100, 3), (3, 1, 2, 70, 1))),
    *(Case("conv_transpose_2d_p0", ne=[(kw, kh, oc, c), (w, h, c, n)], types=(t, "f32"), stride=s)
      for t in ("f32", "f16")
      for kw, kh, oc, c, w, h, n, s in ((3, 3, 2, 4, 5, 6, 2, 1), (2, 2, 3, 5, 10, 7, 1, 2),
                                        (4, 3, 2, 3, 20, 3, 2, 2), (2, 1, 1, 2, 7, 5, 1, 3),
                                        (1, 1, 1, 1, 1, 1, 1, 1), (5, 5, 3, 8, 33, 2, 1, 4))),
    *(Case("pool_2d", ne=[(12, 11, 3, 2)], pool=o, k0=3, k1=2, s0=2, s1=3, p0=1, p1=p)
      for o in (0, 1) for p in (0, 1)),
    *(Case("pool_2d", ne=[(10, 10, 3, 1)], pool=o, k0=k0, k1=k1, s0=s0, s1=s1, p0=p0, p1=p1)
      for o in (0, 1) for k0 in (1, 3) for k1 in (1, 3) for s0 in (1, 2) for s1 in (1, 2)
      for p0 in (0, 1) for p1 in (0, 1) if p0 < k0 and p1 < k1),
    *(Case("pool_1d", ne=[ne], types=(t,), pool=o, k0=k, s0=s, p0=p)
      for o in (0, 1) for t in ("f32", "f16")
      for ne, k, s, p in (((10, 3, 2, 1), 3, 2, 1), ((11, 1, 3, 2), 2, 2, 0),
                          ((128, 2, 1, 3), 5, 1, 2), ((10, 3, 2, 1), 1, 1, 0), ((7, 5), 7, 3, 6))),
    Case("pool_1d", ne=[(12, 5, 3)], layouts=("view",), pool=1, k0=3, s0=3, p0=0),
    *(Case("pool_2d_back", ne=[out, x], pool=o, k0=k0, k1=k1, s0=s0, s1=s1, p0=p0, p1=p1)
      for o in (0, 1)
      for out, x, k0, k1, s0, s1, p0, p1 in (
          ((6, 4, 3, 2), (12, 11, 3, 2), 3, 2, 2, 3, 1, 0),
          ((10, 10, 3), (10, 10, 3), 3, 3, 1, 1, 1, 1),
          ((5, 5, 2), (10, 10, 2), 2, 2, 2, 2, 0, 0))),
]  # fmt: skip
