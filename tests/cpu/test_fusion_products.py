"""Fused kernels of products: gated units, biases. And activations that are quantised once."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.builder import PlanBuilder, ScratchPool
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.kernels.fused_glu import GLUS, MATMUL_GLU, RUN
from ggmlpy.backends.cpu.kernels.fused_norm import ADD_NORM
from ggmlpy.backends.cpu.kernels.matmul import KERNELS as MATMULS
from ggmlpy.backends.cpu.kernels.matmul_activations import QUANTIZE
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.sched.executable import scheduled
from tests.cpu.conftest import ISAS, PRODUCT_ISAS, jit_for
from tests.cpu.fused import (
    EACH_ISA,
    GLU,
    Recording,
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
    for isa in PRODUCT_ISAS:
        types = GLU_WEIGHTS if isa != PRODUCT_ISAS[0] else (*GLU_WEIGHTS, *MORE_GLU_WEIGHTS)
        glu = [MATMUL_GLU[type] for type in types]
        jit_for(isa).load([*glu, *(MATMULS[type] for type in types)])


# --- glu ------------------------------------------------------------------------------------------


def check_gated(isa: str, type: str, op: str, y: Tensor) -> None:
    made = [] if type in ("f32", "f16", "bf16") else ["quantize_f32"]
    product = [*made, f"matmul_{type}"]
    after = [*made, f"matmul_glu_{type}"]
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


@EACH_ISA
@pytest.mark.parametrize("op", GLU)
def test_other_gated_units(isa: str, op: str) -> None:
    for type in GLU_WEIGHTS:
        check_gated(isa, type, op, gated(type, op, 64, 33, floats(64, 11)))


def test_all_gated_units_are_tested() -> None:
    assert set(GLU) == set(GLUS)


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
        run([ops.swiglu_split(gate, up)], "all", Recording(2, isa))


def test_products_by_what_is_no_weight_have_no_fused_kernel() -> None:
    x, w = floats(64, 3), weight("f32", 64, 32)
    gate, up = ops.mul_mat(w, x), ops.mul_mat(floats(64, 32), x)
    assert kernels([ops.swiglu_split(gate, up)])[-1] == "swiglu_f32"
    assert kernels([ops.swiglu_split(up, gate)])[-1] == "swiglu_f32"
    other = ops.mul_mat(weight("f16", 64, 32), x)
    assert kernels([ops.swiglu_split(gate, other)])[-1] == "swiglu_f32"
    assert kernels([ops.add(up, floats(32))])[-1] == "add_f32"


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


# --- activations ----------------------------------------------------------------------------------


def test_activations_are_quantized_once_for_all_that_read_them() -> None:
    x = computed(64, 5)
    products = [ops.mul_mat(weight("q8_0", 64, 32), x) for _ in range(3)]
    one = ["quantize_f32", "matmul_q8_0"]
    before, after = ["neg_f32", *one, *one, *one], ["neg_f32", *one, *one[1:], *one[1:]]
    check(ISAS[0], "none", products, before=before, after=after, share_activations=True)


@pytest.mark.parametrize(
    ("begin", "is_stale"),
    [(0, False), (64, False), (68, True), (128, True), (252, True), (256, False)],
)
def test_quantised_activations_last_until_x_is_overwritten(begin: int, is_stale: bool) -> None:
    """x at bytes 128 to 256; 64 bytes are written."""
    x, written, later = floats(32), floats(16), HostBuffer(aligned_bytes(512))
    places = {x: Place(later, 128), written: Place(later, begin)}
    builder = PlanBuilder(places, 1, ScratchPool(), select("generic"))
    quantize = QUANTIZE["f32"]
    first = builder.activations(x, quantize, 256)
    builder._forget_overwritten(written)
    assert builder.activations(x, quantize, 256) == first
    assert len(builder.records) == 1 + is_stale


def test_the_same_bytes_in_other_rows_are_quantised_again() -> None:
    x = floats(64, 2)
    y = ops.mul_mat(weight("q8_0", 64, 5), x)
    z = ops.mul_mat(weight("q8_0", 32, 5), ops.reshape_2d(x, 32, 4))
    assert kernels([y, z]).count("quantize_f32") == 2


@pytest.mark.parametrize(("where_x_was", "is_stale"), [("y", True), ("sum", True), ("", False)])
def test_activations_are_stale_after_any_result_of_a_step(where_x_was: str, is_stale: bool) -> None:
    total = ops.add(floats(64, 3), floats(64, 3))
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(64))
    (step,) = scheduled(Graph(y, total), [CpuBackend(1)]).splits[0].steps
    assert step.results == {"y": y, "sum": total}
    x = floats(64, 3)
    memory = HostBuffer(aligned_bytes(1 << 13))
    named = {"x": x, **step.operands, **step.results}
    places = {tensor: Place(memory, 1024 * i) for i, tensor in enumerate(named.values())}
    if where_x_was:
        places[step.results[where_x_was]] = places[x]
    builder = PlanBuilder(places, 1, ScratchPool(), select("generic"))
    for _ in range(2):
        builder.activations(x, QUANTIZE["f32"], 256)
    builder.add(ADD_NORM, step)
    builder.activations(x, QUANTIZE["f32"], 256)
    assert builder.kernels == [QUANTIZE["f32"], ADD_NORM] + is_stale * [QUANTIZE["f32"]]
