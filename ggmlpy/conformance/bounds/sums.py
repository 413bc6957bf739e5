"""Sums, products and norms: a few units of the sum of magnitudes.

Where an op is linear in its sources the sum of magnitudes is the op's own reference, of their
absolute values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ggmlpy.conformance.bounds.expected import F64, Array, Magnitude, of_sum, rule, wide
from ggmlpy.graph.op import Op
from ggmlpy.ops.norm import GroupNorm, L2Norm, Norm, RmsNorm
from ggmlpy.ops.pool import Pool1d, Pool2d, Pool2dBack, PoolOp
from ggmlpy.ops.resize import ScaleFlag, ScaleMode, TimestepEmbedding, Upscale


def _values(op: Op, sources: Sequence[Array]) -> F64:
    values: F64 = wide(op.reference(*sources))
    return values


def _magnitudes(op: Op, sources: Sequence[Array]) -> F64:
    """The op of absolute values: those of floats, the others are indices."""
    return _values(op, [np.abs(x) if x.dtype.kind == "f" else x for x in sources])


@rule("sum")
def sum_of_all(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, sources[0].size))


@rule("sum_rows", "mean", "cumsum")
def sum_of_rows(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, sources[0].shape[3]))


@rule("ssm_conv")
def short_convolution(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, sources[1].shape[3]))


@rule("pool_2d")
def pooled(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, Pool2d)
    values = _values(op, sources)
    if op.op is PoolOp.MAX:
        return Magnitude(values, 0 * values)
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, op.k0 * op.k1))


def _root_units(n: int) -> float:
    """Units of a row's length from the sum of n squares, all of one sign; half by the root."""
    return 3 + math.sqrt(n) / 4


@rule("rms_norm", "l2_norm")
def scaled_rows(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, RmsNorm | L2Norm)
    values = _values(op, sources)
    return Magnitude(values, _root_units(sources[0].shape[3]) * np.abs(values))


def _centred(x: F64, values: F64, eps: float, axes: tuple[int, ...]) -> F64:
    """The size of (x - mean) / deviation: a mean that is off shifts all.

    It widens the deviation by its square only. The difference is rounded too.
    """
    n = int(np.prod([x.shape[axis] for axis in axes]))
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + eps)
    terms = np.abs(x).mean(axis=axes, keepdims=True)
    of_mean = of_sum(terms, x.mean(axis=axes, keepdims=True), n)
    size: F64 = (_root_units(n) + 1) * np.abs(values) + of_mean / deviation
    return size


@rule("norm")
def normalised_rows(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, Norm)
    values = _values(op, sources)
    return Magnitude(values, _centred(wide(sources[0]), values, op.eps, (3,)))


@rule("group_norm")
def normalised_groups(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, GroupNorm)
    values, x = _values(op, sources), wide(sources[0])
    step = -(-x.shape[1] // op.n_groups)
    spans = [slice(i, i + step) for i in range(0, x.shape[1], step)]
    sizes = [_centred(x[:, s], values[:, s], op.eps, (1, 2, 3)) for s in spans]
    return Magnitude(values, np.concatenate(sizes, axis=1))


@rule("out_prod")
def outer_products(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, sources[0].shape[2]))


@rule("repeat_back")
def summed_copies(op: Op, sources: Sequence[Array]) -> Magnitude:
    values = _values(op, sources)
    n = sources[0].size // values.size
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, n))


@rule("acc", "add_rel_pos")
def added(op: Op, sources: Sequence[Array]) -> Magnitude:
    """One or two sums of two numbers."""
    return Magnitude(_values(op, sources), _magnitudes(op, sources))


@rule("upscale")
def interpolated(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Sums of a few products with weights. Those of two neighbours are good to units of themselves,
    as positions are given; others to units of the largest."""
    assert isinstance(op, Upscale)
    x = np.abs(wide(sources[0]))
    picked = x[op.nearest(3, x.shape[0])][:, op.nearest(2, x.shape[1])]
    columns, rows = (np.abs(op.weights(dim, x.shape[3 - dim])) for dim in (0, 1))
    if op.mode is ScaleMode.BICUBIC or op.flags & ScaleFlag.ANTIALIAS:
        columns, rows = _widened(columns), _widened(rows)
    size = 8 * np.einsum("ir,abrc,jc->abij", rows, picked, columns, optimize=True)
    exact = op.mode is ScaleMode.NEAREST
    return Magnitude(_values(op, sources), 0 * size if exact else size)


def _widened(weights: F64) -> F64:
    """For each weight that counts, and its neighbours, the largest of its row."""
    used = weights != 0
    used[:, 1:] |= weights[:, :-1] != 0
    used[:, :-1] |= weights[:, 1:] != 0
    widened: F64 = used * weights.max(axis=1, keepdims=True)
    return widened


@rule("timestep_embedding")
def embedded_steps(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Cosines and sines of angles that f32 holds to units of themselves, and of the exponent of
    their frequency."""
    assert isinstance(op, TimestepEmbedding)
    values = _values(op, sources)
    frequencies = op.frequencies()
    angles = np.abs(wide(sources[0])[0, 0, 0][:, None] * frequencies)
    units = 4 + (4 - 3 * np.log(frequencies)) * angles
    rest = np.zeros((len(units), op.dim % 2))
    return Magnitude(values, np.concatenate([units, units, rest], axis=1)[None, None])


@rule("solve_tri")
def solved(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Forward substitution is as good as a system whose coefficients are off by units (Higham,
    "Accuracy and Stability of Numerical Algorithms", section 8.1): |A^-1| |A| |x|. What comes
    after a zero on the diagonal is divided by it, and may be anything."""
    values = _values(op, sources)
    a = np.tril(wide(sources[0]))
    n = a.shape[3]
    identity = np.broadcast_to(np.eye(n), a.shape)
    with np.errstate(all="ignore"):
        inverse = np.abs(_values(op, [a, identity]))
        size = (4 + np.sqrt(n)) * (inverse @ (np.abs(a) @ np.abs(values)))
    return Magnitude(values, np.where(np.isnan(size), np.inf, size))


_KERNEL_AXES = {  # of the kernel, in numpy order: those that a result is summed over
    "conv_2d": (1, 2, 3),
    "conv_2d_dw": (2, 3),
    "conv_3d": (0, 1, 2, 3),
    "conv_transpose_1d": (1, 3),
    "conv_transpose_2d": (0, 2, 3),
}


@rule(*_KERNEL_AXES)
def convolved(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Sums over the channels and places of a kernel."""
    values = _values(op, sources)
    n = int(np.prod([sources[0].shape[axis] for axis in _KERNEL_AXES[op.name]]))
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, n))


@rule("im2col_back", "col2im_1d")
def summed_windows(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Sums over the windows that an element is in, which the op of ones counts."""
    values, rest = _values(op, sources), sources[1:]
    n_windows = _values(op, [np.ones_like(sources[0]), *rest])
    size = of_sum(_values(op, [np.abs(sources[0]), *rest]), values, n_windows)
    return Magnitude(values, np.where(n_windows > 1, size, 0))  # a single number is copied


@rule("pool_2d_back")
def summed_pools(op: Op, sources: Sequence[Array]) -> Magnitude:
    """Sums over the windows that an element is in, of shares of means."""
    assert isinstance(op, Pool2dBack)
    values = _values(op, sources)
    sums = _values(op, [np.abs(sources[0]), *sources[1:]])  # the largest by the signs of the source
    return Magnitude(values, of_sum(sums, values, op.k0 * op.k1) + np.abs(values))


@rule("pool_1d")
def pooled_rows(op: Op, sources: Sequence[Array]) -> Magnitude:
    assert isinstance(op, Pool1d)
    values = _values(op, sources)
    if op.op is PoolOp.MAX:
        return Magnitude(values, 0 * values)
    return Magnitude(values, of_sum(_magnitudes(op, sources), values, op.k0))
