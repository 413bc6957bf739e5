"""rope on the CPU: angles stay right far out, and a token's row does not depend on its company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.cpu.conftest import ISAS, VECTOR_ISAS
from tests.cpu.running import run

Floats = NDArray[Any]
NORMAL, NEOX = 0, 2
POSITIONS = np.array([0, 1, 7, 4095, 100_000, 1_048_575, 20_000_000, -3], np.int32)


def rope(x: Floats, pos: NDArray[np.int32], mode: int, n_dims: int, **params: Any) -> Tensor:
    """x [T, H, D] -> [D, H, T]."""
    factors = params.get("factors")
    return ops.rope_ext(
        from_numpy(x),
        from_numpy(pos),
        None if factors is None else from_numpy(factors),
        n_dims,
        mode,
        8192,
        params.get("freq_base", 10_000.0),
        params.get("freq_scale", 1.0),
        params.get("ext_factor", 0.0),
        params.get("attn_factor", 1.0),
        32.0,
        1.0,
    )


def check(y: Tensor, isa: str) -> None:
    """Each element within a few roundings of its pair's length."""
    assert y.op is not None
    got = run(y, isa, 2)
    sources = [source.numpy().reshape(source.ne[::-1]) for source in y.src]
    want = y.op.reference(*sources).reshape(got.shape)
    size = np.abs(want).max(axis=-1, keepdims=True)
    assert np.abs(got - want).max(initial=0, where=size > 0) <= 5e-7 * size.max()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("mode", [NORMAL, NEOX])
@pytest.mark.parametrize(("d", "n_dims"), [(64, 64), (8, 8), (80, 80), (96, 20), (34, 34), (3, 2)])
def test_far_positions(isa: str, mode: int, d: int, n_dims: int) -> None:
    x = np.random.default_rng(d).standard_normal((len(POSITIONS), 3, d)).astype(np.float32)
    check(rope(x, POSITIONS, mode, n_dims), isa)
    check(rope(x, POSITIONS, mode, n_dims, freq_base=5e5, attn_factor=0.7), isa)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("mode", [NORMAL, NEOX])
def test_far_positions_with_factors_and_yarn(isa: str, mode: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((len(POSITIONS), 2, 72)).astype(np.float32)
    factors = rng.uniform(0.5, 8, 36).astype(np.float32)
    check(rope(x, POSITIONS, mode, 72, factors=factors), isa)
    check(rope(x, POSITIONS, mode, 72, factors=factors, freq_scale=0.25, ext_factor=1.0), isa)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("mode", [NORMAL, NEOX])
def test_a_row_alone_has_the_same_bits(isa: str, mode: int) -> None:
    x = np.random.default_rng(2).standard_normal((len(POSITIONS), 5, 40)).astype(np.float32)
    together = run(rope(x, POSITIONS, mode, 40), isa, 3)
    for t in range(len(POSITIONS)):
        one = run(rope(x[t : t + 1], POSITIONS[t : t + 1], mode, 40), isa, 1)
        assert one.tobytes() == together[t].tobytes()


@pytest.mark.parametrize("mode", [NORMAL, NEOX])
def test_what_is_not_turned_is_copied(mode: int) -> None:
    """Bit by bit, a NaN's payload too."""
    x = np.random.default_rng(3).standard_normal((4, 2, 50)).astype(np.float32)
    x.view(np.uint32)[..., 41] = 0x7FC12345
    y = run(rope(x, np.arange(4, dtype=np.int32), mode, 22), ISAS[0], 2)
    assert y[..., 22:].tobytes() == x[..., 22:].tobytes()
    assert (y[1:, :, :22] != x[1:, :, :22]).any()


def test_position_0_changes_nothing() -> None:
    x = np.random.default_rng(4).standard_normal((1, 3, 64)).astype(np.float32)
    y = run(rope(x, np.zeros(1, np.int32), NEOX, 64), ISAS[0], 1)
    assert y.tobytes() == x[0].tobytes()
