"""The fused kernel of rope and the write into a cache: the same bits, errors that name it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.kernels.fused_rope import ROPE_SET_ROWS
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import Flag, Tensor, from_numpy, zeros
from ggmlpy.ops.rope import RopeMode
from tests.cpu.conftest import ISAS, VECTOR_ISAS, jit_for
from tests.cpu.fused import (
    EACH_VECTOR_ISA,
    RNG,
    Recording,
    check,
    computed,
    run,
)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """All at once, on all cores: one at a time they take minutes."""
    for isa in VECTOR_ISAS:
        jit_for(isa).load([ROPE_SET_ROWS["f16"], ROPE_SET_ROWS["q8_0"]])
    jit_for(ISAS[0]).load(list(ROPE_SET_ROWS.values()))


def stored(
    mode: RopeMode,
    cache_type: str,
    *,
    D: int = 32,
    Hk: int = 3,
    n_dims: int = 32,
    ids: Sequence[int] = (5, 0, 11, 2),
    ids_type: str = "int64",
    factors: bool = False,
) -> Tensor:
    T = len(ids)
    cache = zeros(cache_type, (D * Hk, 12), flags=Flag.STATE)
    positions = from_numpy(RNG.integers(0, 5000, T).astype(np.int32))
    freq_factors = from_numpy(RNG.uniform(1, 8, n_dims // 2).astype(np.float32))
    keys = ops.rope_ext(
        computed(D, Hk, T), positions, freq_factors if factors else None, n_dims, mode, 0,
        10_000.0, 1.0, 0.0, 1.0, 0.0, 0.0,
    )  # fmt: skip
    rows = from_numpy(np.array(ids, ids_type))
    return ops.set_rows(cache, ops.reshape_2d(keys, D * Hk, T), rows)


def check_stored(isa: str, y: Tensor) -> None:
    type = y.type.name
    plain, after = ["neg_f32", "rope_f32", f"set_rows_{type}"], ["neg_f32", f"rope_set_rows_{type}"]
    check(isa, ["rope"], [y], before=plain, after=after)


@EACH_VECTOR_ISA
@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
@pytest.mark.parametrize("type", ["f16", "q8_0"])
def test_keys_turned_and_stored(isa: str, mode: RopeMode, type: str) -> None:
    check_stored(isa, stored(mode, type))
    check_stored(isa, stored(mode, type, n_dims=16, factors=True, ids_type="int32"))
    check_stored(isa, stored(mode, type, ids=(3,)))
    check_stored(isa, stored(mode, type, ids=(3, 3, 3)))  # the last one wins


@pytest.mark.parametrize("type", ["f32", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_other_caches(type: str) -> None:
    check_stored(ISAS[0], stored(RopeMode.NEOX, type))


@EACH_VECTOR_ISA
def test_odd_heads(isa: str) -> None:
    for D, n_dims in ((2, 2), (10, 6), (34, 34), (80, 64)):
        check_stored(isa, stored(RopeMode.NORMAL, "f16", D=D, n_dims=n_dims))
        check_stored(isa, stored(RopeMode.NEOX, "f16", D=D, n_dims=n_dims))


@EACH_VECTOR_ISA
@pytest.mark.parametrize("bad", [-1, 12])
def test_a_bad_row_stores_nothing_and_names_the_write(isa: str, bad: int) -> None:
    y = stored(RopeMode.NEOX, "f16", ids=(1, bad, 2)).named("k_stored")
    with pytest.raises(IndexOutOfRange, match=rf"k_stored .*index {bad} "):
        run([y], "all", Recording(2, isa))
    assert y.root.place is not None
    assert not y.root.place.host_bytes.any()
