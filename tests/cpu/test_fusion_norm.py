"""Fused kernels of norms with what comes before and after: the same bits as one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.kernels.fused_norm import ADD_NORM, NORM_MUL
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.cpu.conftest import VECTOR_ISAS, jit_for
from tests.cpu.fused import (
    EACH_VECTOR_ISA,
    RNG,
    check,
    computed,
    floats,
    kernels,
)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """All at once, on all cores: one at a time they take minutes."""
    for isa in VECTOR_ISAS:
        jit_for(isa).load([*NORM_MUL.values(), ADD_NORM])


# --- norm -----------------------------------------------------------------------------------------

SHAPES = [(1,), (5, 7), (16, 3), (33, 1, 4), (300, 5, 2, 3), (4096, 2)]


@EACH_VECTOR_ISA
@pytest.mark.parametrize("norm", [ops.rms_norm, ops.norm])
@pytest.mark.parametrize("ne", SHAPES)
def test_a_norm_its_weight_and_its_bias(
    isa: str, norm: Callable[[Tensor, float], Tensor], ne: tuple[int, ...]
) -> None:
    name = norm.__name__
    weighed = ops.mul(norm(computed(*ne), 1e-5), floats(ne[0]))
    plain = ["neg_f32", f"{name}_f32", "mul_f32"]
    check(isa, ["norm"], [weighed], before=plain, after=["neg_f32", f"{name}_mul_f32"])
    shifted = ops.add(ops.mul(norm(computed(*ne), 1e-5), floats(ne[0])), floats(ne[0]))
    after = ["neg_f32", f"{name}_mul_f32"]
    check(isa, ["norm"], [shifted], before=[*plain, "add_f32"], after=after)


@EACH_VECTOR_ISA
def test_a_norm_with_what_is_repeated_and_what_is_strided(isa: str) -> None:
    rows = ops.view_3d(floats(40, 6, 5), 33, 3, 5, 2 * 160, 6 * 160, 12)
    y = ops.mul(ops.rms_norm(rows, 1e-5), floats(33, 3))
    y = ops.add(y, ops.view_3d(floats(40, 3, 5), 33, 3, 5, 160, 480, 4))
    plain = ["rms_norm_f32", "mul_f32", "add_f32"]
    check(isa, ["norm"], [y], before=plain, after=["rms_norm_mul_f32"])


@EACH_VECTOR_ISA
def test_special_values_of_norms(isa: str) -> None:
    x = RNG.standard_normal((5, 20)).astype(np.float32)
    x[0] = 0
    x[1, 3], x[2, 3], x[3] = np.nan, np.inf, 1e-30
    w = RNG.standard_normal(20).astype(np.float32)
    w[5], w[6] = np.inf, -0.0
    y = ops.add(ops.mul(ops.rms_norm(from_numpy(x), 1e-5), from_numpy(w)), floats(20, 5))
    plain = ["rms_norm_f32", "mul_f32", "add_f32"]
    check(isa, ["norm"], [y], before=plain, after=["rms_norm_mul_f32"])


def test_a_weight_of_another_type_has_no_fused_kernel() -> None:
    x = ops.rms_norm(computed(24, 3), 1e-5)
    assert kernels([ops.mul(x, ops.cast(floats(24), "f16"))])[-1] == "mul_any"
    y = ops.add(ops.mul(x, floats(24)), ops.cast(floats(24, 3), "f16"))
    assert kernels([y])[-1] == "add_any"


# --- residual -------------------------------------------------------------------------------------


@EACH_VECTOR_ISA
@pytest.mark.parametrize("ne", SHAPES)
def test_a_sum_its_norm_and_its_weight(isa: str, ne: tuple[int, ...]) -> None:
    total = ops.add(computed(*ne), computed(*ne))
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    plain = ["neg_f32", "neg_f32", "add_f32", "rms_norm_f32", "mul_f32"]
    after = ["neg_f32", "neg_f32", "add_rms_norm_mul_f32"]
    passes = ["residual"]
    check(isa, passes, [y], before=plain, after=after)
    check(isa, passes, [ops.add(total, y)], before=[*plain, "add_f32"], after=[*after, "add_f32"])
    check(isa, passes, [total, y], before=plain, after=after)


@EACH_VECTOR_ISA
@pytest.mark.parametrize("ne", SHAPES)
def test_a_norm_after_a_block_and_the_one_before_the_next(isa: str, ne: tuple[int, ...]) -> None:
    b = computed(*ne)
    total = ops.add(ops.mul(ops.rms_norm(ops.sqr(b), 1e-6), floats(ne[0])), b)
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    norm = ["rms_norm_f32", "mul_f32"]
    plain = ["neg_f32", "sqr_f32", *norm, "add_f32", *norm]
    after = ["neg_f32", "sqr_f32", "add_rms_norm_mul_f32"]
    check(isa, ["residual"], [total, y], before=plain, after=after)
    check(isa, ["residual"], [y], before=plain, after=after)
    check(isa, "all", [y, b], before=plain, after=after)  # which nothing may be written over
