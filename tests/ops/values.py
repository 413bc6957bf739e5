"""Small helpers of the op tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.tensor import Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from ggmlpy.ops import transpose
from ggmlpy.sched.compute import compute

Floats = NDArray[np.float32]


def uniform(seed: int, *ne: int, low: float = -1, high: float = 1) -> Floats:
    """Random values in numpy order [ne3, ne2, ne1, ne0] for a tensor of shape `ne`."""
    shape = (*ne, *(1,) * (4 - len(ne)))[::-1]
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def leaf(values: NDArray[Any]) -> Tensor:
    """A tensor of these values (f32, f16 or integers), of its own memory."""
    return from_numpy(values.copy())


def integers(*values: Any, dtype: type = np.int32) -> Tensor:
    return from_numpy(np.array(values, dtype))


def blank(type: str, *ne: int) -> Tensor:
    """A tensor of zero bytes, for shape rules."""
    count = 1
    for n in ne[1:]:
        count *= n
    return from_bytes(bytearray(type_of(type).row_bytes(ne[0]) * count), type, ne)


def f32(*ne: int) -> Tensor:
    return blank("f32", *ne)


def f16(*ne: int) -> Tensor:
    return blank("f16", *ne)


def i32(*ne: int) -> Tensor:
    return blank("i32", *ne)


def transposed(*ne: int, type: str = "f32") -> Tensor:
    """Rows that are not contiguous; ne as given."""
    return transpose(blank(type, ne[1], ne[0], *ne[2:]))


def run(y: Tensor) -> NDArray[Any]:
    """The reference's values in numpy order, all four dimensions."""
    return np.asarray(compute(y, backend="reference")).reshape(y.ne[::-1])


def close(got: NDArray[Any], want: NDArray[Any]) -> None:
    """As equal as one rounding to f32 allows."""
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
