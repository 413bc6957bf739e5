"""Fusion of matrix products: gated units, biases, activations that are quantised once."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.kernels.fused_glu import MATMUL_GLU, RUN
from ggmlpy.backends.cpu.kernels.matmul import KERNELS as MATMULS
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.cpu.conftest import ISAS, jit_for
from tests.cpu.fused import (
    EACH_ISA,
    GLU,
    check,
    computed,
    floats,
    gated,
    kernels,
    run,
    weight,
)

GLU_WEIGHTS = ("f32", "q4_0")
MORE_GLU_WEIGHTS = ("f16", "q8_0", "q4_K", "q6_K")  # on one instruction set


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """All at once, on all cores: one at a time they take minutes."""
    for isa in ISAS:
        types = GLU_WEIGHTS if isa != ISAS[0] else (*GLU_WEIGHTS, *MORE_GLU_WEIGHTS)
        glu = [MATMUL_GLU[type, "swiglu"] for type in types]
        jit_for(isa).load([*glu, *(MATMULS[type] for type in types)])
    jit_for(ISAS[0]).load([MATMUL_GLU["f32", op] for op in GLU])


# --- glu ------------------------------------------------------------------------------------------


def check_gated(isa: str, type: str, op: str, y: Tensor) -> None:
    made = [] if type in ("f32", "f16", "bf16") else ["quantize_f32"]
    product = [*made, f"matmul_{type}"]
    after = [*made, f"matmul_{op}_{type}"]
    check(isa, ["glu"], [y], before=[*product, *product, f"{op}_f32"], after=after)


@EACH_ISA
@pytest.mark.parametrize("type", GLU_WEIGHTS)
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 70])
def test_products_and_their_gated_unit(isa: str, type: str, n: int) -> None:
    k = 256
    for m in (1, 16, 33, 560):  # of the last 8 rows of x take more than one run of groups
        check_gated(isa, type, "swiglu", gated(type, "swiglu", k, m, floats(k, n)))


def test_one_row_takes_more_than_one_run_of_groups() -> None:
    check_gated(ISAS[0], "f32", "swiglu", gated("f32", "swiglu", 24, 16 * 2 * RUN + 5, floats(24)))


@pytest.mark.parametrize("type", MORE_GLU_WEIGHTS)
def test_other_weights_of_gated_units(type: str) -> None:
    check_gated(ISAS[0], type, "swiglu", gated(type, "swiglu", 256, 40, floats(256, 11)))


@pytest.mark.parametrize("op", GLU)
def test_other_gated_units(op: str) -> None:
    check_gated(ISAS[0], "f32", op, gated("f32", op, 40, 33, floats(40, 11)))


@EACH_ISA
def test_gated_units_of_several_matrices(isa: str) -> None:
    check_gated(isa, "f32", "swiglu", gated("f32", "swiglu", 48, 33, floats(48, 5, 4, 3), 2, 3))


@EACH_ISA
def test_gated_units_of_experts(isa: str) -> None:
    ids = from_numpy(np.array([[1, 0], [2, 1], [2, 0]], np.int32))
    x = floats(64, 1, 3)
    gate, up = (ops.mul_mat_id(weight("f32", 64, 33, 3), x, ids) for _ in range(2))
    check_gated(isa, "f32", "swiglu", ops.swiglu_split(gate, up))
    ids.array()[3] = 3
    with pytest.raises(IndexOutOfRange, match="index 3"):
        run([ops.swiglu_split(gate, up)], "all", isa, 2)


def test_products_are_left_alone_where_they_must_be() -> None:
    k, m = 64, 32
    x = floats(k, 3)
    a, b = weight("f32", k, m), weight("f32", k, m)
    gate, up = ops.mul_mat(a, x), ops.mul_mat(b, x)
    fused = "matmul_swiglu_f32"

    def made(*outputs: Tensor) -> bool:
        return fused in kernels(outputs)

    assert made(ops.swiglu_split(gate, up))
    assert made(ops.mul(ops.swiglu_split(up, gate), floats(m))), "in the other order"
    assert not made(ops.swiglu_split(gate, up), gate), "an output"
    assert not made(ops.swiglu_split(gate, up), ops.neg(up)), "another reader"
    assert not made(ops.swiglu_split(gate, gate)), "one product"
    assert not made(ops.swiglu(gate)), "halves of one"
    assert not made(ops.swiglu_split(gate, ops.mul_mat(b, floats(k, 3)))), "two x"
    assert not made(ops.swiglu_split(gate, ops.mul_mat(weight("f16", k, m), x))), "two types"
    assert not made(ops.swiglu_split(gate, ops.mul_mat(floats(k, m), x))), "no weight"
    assert not made(ops.swiglu_split(gate, ops.add(up, floats(m)))), "a bias"
    batched = ops.mul_mat(weight("f32", k, m, 2), floats(k, 3, 2))
    one = ops.mul_mat(a, floats(k, 3, 2))
    assert not made(ops.swiglu_split(batched, one)), "two shapes"


# --- bias -----------------------------------------------------------------------------------------


@EACH_ISA
@pytest.mark.parametrize("type", ["f32", "q4_0"])
@pytest.mark.parametrize("n", [1, 3, 8, 70])
def test_a_product_and_its_bias(isa: str, type: str, n: int) -> None:
    made = ["quantize_f32"] if type == "q4_0" else []
    for m in (1, 16, 33):
        y = ops.add(ops.mul_mat(weight(type, 64, m), floats(64, n)), floats(m))
        plain = [*made, f"matmul_{type}", "add_f32"]
        check(isa, ["bias"], [y], before=plain, after=plain[:-1])


def test_a_bias_of_several_matrices() -> None:
    y = ops.add(ops.mul_mat(weight("f16", 48, 33, 2), floats(48, 5, 4, 3)), floats(33))
    check(ISAS[0], ["bias"], [y], before=["matmul_f16", "add_f32"], after=["matmul_f16"])


def test_a_bias_is_left_alone_where_it_must_be() -> None:
    x = floats(64, 3)
    y = ops.mul_mat(weight("f32", 64, 32), x)
    alone, fused = ["matmul_f32", "add_f32"], ["matmul_f32"]
    assert kernels([ops.add(y, floats(32))]) == fused
    assert kernels([ops.add(y, floats(32)), y]) == alone, "an output"
    assert kernels([ops.add(floats(32, 3), y)]) == alone, "the second term"
    assert kernels([ops.add(y, floats(32, 3))]) == alone, "a row for each"
    assert kernels([ops.add(y, floats(1))]) == alone, "a number"
    assert kernels([ops.add(y, computed(32))])[-1] == "add_f32", "nothing that is computed"
    product = ops.mul_mat(floats(64, 32), x)
    assert kernels([ops.add(product, floats(32))])[-1] == "add_f32", "by what is no weight"


# --- activations ----------------------------------------------------------------------------------


def test_activations_are_quantized_once_for_all_that_read_them() -> None:
    x = computed(64, 5)
    products = [ops.mul_mat(weight("q8_0", 64, 32), x) for _ in range(3)]
    one = ["quantize_f32", "matmul_q8_0"]
    before, after = ["neg_f32", *one, *one, *one], ["neg_f32", *one, *one[1:], *one[1:]]
    check(ISAS[0], ["activations"], products, before=before, after=after)
