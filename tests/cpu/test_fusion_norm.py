"""Fusion of norms with what comes before and after: the same bits, no value that anyone misses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.kernels.fused_norm import ADD_NORM, NORM_MUL
from ggmlpy.graph.tensor import Flag, Tensor, from_numpy
from tests.cpu.conftest import ISAS, jit_for
from tests.cpu.fused import (
    EACH_ISA,
    RNG,
    check,
    computed,
    floats,
    kernels,
    normed,
    run,
)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """All at once, on all cores: one at a time they take minutes."""
    for isa in ISAS:
        jit_for(isa).load([*NORM_MUL.values(), ADD_NORM])


# --- norm -----------------------------------------------------------------------------------------

SHAPES = [(1,), (5, 7), (16, 3), (33, 1, 4), (300, 5, 2, 3), (4096, 2)]


@EACH_ISA
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


@EACH_ISA
def test_a_norm_with_what_is_repeated_and_what_is_strided(isa: str) -> None:
    rows = ops.view_3d(floats(40, 6, 5), 33, 3, 5, 2 * 160, 6 * 160, 12)
    y = ops.mul(ops.rms_norm(rows, 1e-5), floats(33, 3))
    y = ops.add(y, ops.view_3d(floats(40, 3, 5), 33, 3, 5, 160, 480, 4))
    plain = ["rms_norm_f32", "mul_f32", "add_f32"]
    check(isa, ["norm"], [y], before=plain, after=["rms_norm_mul_f32"])


@EACH_ISA
def test_special_values_of_norms(isa: str) -> None:
    x = RNG.standard_normal((5, 20)).astype(np.float32)
    x[0] = 0
    x[1, 3], x[2, 3], x[3] = np.nan, np.inf, 1e-30
    w = RNG.standard_normal(20).astype(np.float32)
    w[5], w[6] = np.inf, -0.0
    y = ops.add(ops.mul(ops.rms_norm(from_numpy(x), 1e-5), from_numpy(w)), floats(20, 5))
    plain = ["rms_norm_f32", "mul_f32", "add_f32"]
    check(isa, ["norm"], [y], before=plain, after=["rms_norm_mul_f32"])


def test_a_norm_is_left_alone_where_it_must_be() -> None:
    w, fused = floats(24), "rms_norm_mul_f32"
    x = normed()
    assert fused in kernels([ops.mul(x, w)])
    assert fused not in kernels([ops.mul(x, w), x]), "an output"
    assert fused not in kernels([ops.mul(x, w), ops.reshape_1d(x, 72)]), "a view of it is one"
    assert fused not in kernels([ops.mul(x, w), ops.silu(x)]), "another node reads it"
    assert fused not in kernels([ops.mul(x, w), ops.silu(ops.reshape_1d(x, 72))]), "through a view"
    assert fused not in kernels([ops.mul(x, x)]), "twice the same"
    assert fused not in kernels([ops.mul(floats(24, 3), x)]), "the second factor"
    assert fused not in kernels([ops.mul(x, floats(1))]), "a number"
    assert fused not in kernels([ops.mul(x, floats(8))]), "a weight that repeats in a row"
    assert fused not in kernels([ops.mul(ops.reshape_1d(x, 72), floats(72))]), "other rows"
    assert fused not in kernels([ops.mul(x, ops.cast(w, "f16"))]), "another type"
    assert fused not in kernels([ops.mul(x, ops.transpose(floats(3, 24)))]), "scattered rows"
    x.flags |= Flag.OUTPUT
    assert fused not in kernels([ops.mul(x, w)]), "marked as an output"


def test_what_follows_a_norm_is_left_alone_where_it_must_be() -> None:
    y = ops.mul(normed(), floats(24))
    fused, alone = ["neg_f32", "rms_norm_mul_f32"], ["neg_f32", "rms_norm_mul_f32", "add_f32"]
    assert kernels([ops.add(y, floats(24))], ["norm"]) == fused
    assert kernels([ops.add(y, floats(24)), y], ["norm"]) == alone
    assert kernels([ops.add(floats(24, 3), y)], ["norm"]) == alone
    assert kernels([ops.add(y, floats(12))], ["norm"]) == alone


# --- residual -------------------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("ne", SHAPES)
def test_a_sum_its_norm_and_its_weight(isa: str, ne: tuple[int, ...]) -> None:
    total = ops.add(computed(*ne), computed(*ne))
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    plain = ["neg_f32", "neg_f32", "add_f32", "rms_norm_f32", "mul_f32"]
    after = ["neg_f32", "neg_f32", "add_rms_norm_mul_f32"]
    passes = ["norm", "residual"]
    check(isa, passes, [y], before=plain, after=after)
    check(isa, passes, [ops.add(total, y)], before=[*plain, "add_f32"], after=[*after, "add_f32"])
    check(isa, passes, [total, y], before=plain, after=after)


@EACH_ISA
@pytest.mark.parametrize("ne", SHAPES)
def test_a_norm_after_a_block_and_the_one_before_the_next(isa: str, ne: tuple[int, ...]) -> None:
    h = ops.mul(ops.rms_norm(computed(*ne), 1e-6), floats(ne[0]))
    total = ops.add(h, computed(*ne))
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    got, _ = run([ops.add(total, y)], "none", isa, 1)
    assert run([ops.add(total, y)], "all", isa, 3)[0] == got
    total = ops.add(ops.mul(ops.rms_norm(computed(*ne), 1e-6), floats(ne[0])), floats(*ne))
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(ne[0]))
    norm = ["rms_norm_f32", "mul_f32"]
    plain = ["neg_f32", *norm, "add_f32", *norm]
    after = ["neg_f32", "add_rms_norm_mul_f32"]
    check(isa, ["norm", "residual"], [total, y], before=plain, after=after)
    check(isa, ["norm", "residual"], [y], before=plain, after=after)


def test_a_sum_is_left_alone_where_it_must_be() -> None:
    def after(total: Tensor, *more: Tensor, norm: Callable[..., Tensor] = ops.rms_norm) -> bool:
        y = ops.mul(norm(total, 1e-5), floats(24))
        found = kernels([y, *more], ["norm", "residual"])
        return "add_rms_norm_mul_f32" in found

    a = computed(24, 3)
    assert after(ops.add(a, floats(24, 3)))
    assert not after(ops.add(a, floats(24))), "repeated"
    assert not after(ops.add(a, floats(24, 3)), norm=ops.norm), "another norm"
    assert not after(ops.add(ops.cast(a, "f16"), floats(24, 3)).cast("f32")), "another type"
    total = ops.add(a, floats(24, 3))
    shifted = ops.add(ops.mul(ops.rms_norm(total, 1e-5), floats(24)), floats(24))
    assert "add_rms_norm_mul_f32" not in kernels([shifted]), "a bias, which has no field"
