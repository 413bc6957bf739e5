"""Fusion on the CPU: one record for several nodes, the same bits, no value that anyone misses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Place, Places
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.cpu.fusion import NAMES, chosen
from ggmlpy.backends.cpu.kernels.fused_glu import MATMUL_GLU, RUN
from ggmlpy.backends.cpu.kernels.fused_norm import ADD_NORM, NORM_MUL
from ggmlpy.backends.cpu.kernels.fused_rope import SET_TURNED
from ggmlpy.backends.cpu.kernels.matmul import KERNELS as MATMULS
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import BackendError, IndexOutOfRange
from ggmlpy.executable import Executable
from ggmlpy.graph import Graph
from ggmlpy.ops.rope import RopeMode
from ggmlpy.scheduler import Pin
from ggmlpy.storage import Storage
from ggmlpy.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from tests.cpu.conftest import ISAS, jit_for
from tests.cpu.products import weight_bytes

RNG = np.random.default_rng(0)
GLU_WEIGHTS = ("f32", "q4_0")
MORE_GLU_WEIGHTS = ("f16", "q8_0", "q4_K", "q6_K")  # on one instruction set
EACH_ISA = pytest.mark.parametrize("isa", ISAS)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """All at once, on all cores: one at a time they take minutes."""
    fused = [*NORM_MUL.values(), ADD_NORM, SET_TURNED["f16"], SET_TURNED["q8_0"]]
    for isa in ISAS:
        types = GLU_WEIGHTS if isa != ISAS[0] else (*GLU_WEIGHTS, *MORE_GLU_WEIGHTS)
        glu = [MATMUL_GLU[type, "swiglu"] for type in types]
        jit_for(isa).load([*fused, *glu, *(MATMULS[type] for type in types)])
    jit_for(ISAS[0]).load([*SET_TURNED.values(), *(MATMUL_GLU["f32", op] for op in GLU)])


class Recording(CpuBackend):
    """Remembers which kernels its plans run."""

    def __init__(
        self, fusion: str | Iterable[str], n_threads: int = 1, isa: str | None = None
    ) -> None:
        super().__init__(n_threads, isa, fusion)
        self.kernels: list[str] = []

    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> CpuPlan:
        made = super().plan(nodes, places, wanted)
        self.kernels += made.kernels
        return made


def kernels(
    outputs: Sequence[Tensor], fusion: str | Iterable[str] = "all", pin: Pin | None = None
) -> list[str]:
    """What a plan of the outputs runs."""
    backend = Recording(fusion)
    Executable(Graph(*outputs), [backend, ReferenceBackend()], pin)
    return backend.kernels


def run(
    outputs: Sequence[Tensor], fusion: str | Iterable[str], isa: str, n_threads: int
) -> tuple[list[bytes], list[str]]:
    """The outputs' bytes and the kernels that were run; state leaves are empty before."""
    graph = Graph(*outputs)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            assert leaf.storage is not None
            leaf.storage.data[:] = 0
    backend = Recording(fusion, n_threads, isa)
    executable = Executable(graph, [backend])
    executable.run()
    executable.run()  # what the first run left in memory must not matter
    return [executable.raw(y).tobytes() for y in outputs], backend.kernels


def check(
    isa: str,
    fusion: str | Iterable[str],
    outputs: Sequence[Tensor],
    *,
    before: Sequence[str],
    after: Sequence[str],
) -> None:
    """Kernels before and after the passes, and the same bits from any number of threads."""
    want, plain = run(outputs, "none", isa, 1)
    assert plain == list(before)
    for n_threads in (1, 3):
        got, fused = run(outputs, fusion, isa, n_threads)
        assert fused == list(after)
        assert got == want


def floats(*ne: int) -> Tensor:
    return from_numpy(RNG.standard_normal(ne[::-1]).astype(np.float32))


def computed(*ne: int) -> Tensor:
    """A node: its memory is given to others after its last use."""
    return ops.neg(floats(*ne))


def weight(type: str, *ne: int) -> Tensor:
    k, *rest = ne
    raw = weight_bytes(type, int(np.prod(rest)), k, seed=len(ne))
    return from_bytes(raw.tobytes(), type, ne)


# --- norm ---------------------------------------------------------------------------------------

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


def _normed() -> Tensor:
    return ops.rms_norm(computed(24, 3), 1e-5)


def test_a_norm_is_left_alone_where_it_must_be() -> None:
    w, fused = floats(24), "rms_norm_mul_f32"
    x = _normed()
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
    y = ops.mul(_normed(), floats(24))
    fused, alone = ["neg_f32", "rms_norm_mul_f32"], ["neg_f32", "rms_norm_mul_f32", "add_f32"]
    assert kernels([ops.add(y, floats(24))], ["norm"]) == fused
    assert kernels([ops.add(y, floats(24)), y], ["norm"]) == alone
    assert kernels([ops.add(floats(24, 3), y)], ["norm"]) == alone
    assert kernels([ops.add(y, floats(12))], ["norm"]) == alone


# --- residual -----------------------------------------------------------------------------------


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


# --- glu ----------------------------------------------------------------------------------------

GLU: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swiglu": ops.swiglu_split,
    "geglu": ops.geglu_split,
    "reglu": ops.reglu_split,
    "swiglu_oai": lambda a, b: ops.swiglu_oai(a, b, 1.702, 7.0),
}


def gated(type: str, op: str, k: int, m: int, x: Tensor, *batch: int) -> Tensor:
    gate, up = (ops.mul_mat(weight(type, k, m, *batch), x) for _ in range(2))
    return GLU[op](gate, up)


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


# --- rope ---------------------------------------------------------------------------------------


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
    plain, after = ["neg_f32", "rope_f32", f"set_rows_{type}"], ["neg_f32", f"set_turned_{type}"]
    check(isa, ["rope"], [y], before=plain, after=after)


@EACH_ISA
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


@EACH_ISA
def test_odd_heads(isa: str) -> None:
    for D, n_dims in ((2, 2), (10, 6), (34, 34), (80, 64)):
        check_stored(isa, stored(RopeMode.NORMAL, "f16", D=D, n_dims=n_dims))
        check_stored(isa, stored(RopeMode.NEOX, "f16", D=D, n_dims=n_dims))


@EACH_ISA
@pytest.mark.parametrize("bad", [-1, 12])
def test_a_bad_row_stores_nothing_and_names_the_write(isa: str, bad: int) -> None:
    y = stored(RopeMode.NEOX, "f16", ids=(1, bad, 2)).named("k_stored")
    with pytest.raises(IndexOutOfRange, match=rf"k_stored .*index {bad} "):
        run([y], "all", isa, 2)
    assert y.root.storage is not None
    assert not y.root.storage.data.any()


def test_keys_are_left_alone_where_they_must_be() -> None:
    y = stored(RopeMode.NEOX, "f16")
    view, rows, into = y.src
    keys = view.src[0]

    def made(*outputs: Tensor) -> bool:
        return "set_turned_f16" in kernels(outputs)

    assert made(y)
    assert not made(y, keys), "an output"
    assert not made(y, ops.neg(keys)), "another reader"
    some = ops.view_2d(keys, 96, 2, view.nb[1], 0)
    two = from_numpy(np.array([4, 1]))
    assert not made(ops.set_rows(into, some, two)), "some of the rows"
    whole = ops.set_rows(zeros("f16", (32, 12), flags=Flag.STATE), ops.reshape_2d(keys, 32, 12),
                         from_numpy(np.arange(12)))  # fmt: skip
    assert not made(whole), "a row a head"
    assert made(ops.set_rows(into, view, rows))


def test_keys_of_the_cache_itself_are_not_stored_while_they_are_read() -> None:
    cache = zeros("f32", (64, 12), flags=Flag.STATE)
    keys = ops.view_3d(cache, 32, 2, 4, 128, 256, 0)
    turned = ops.rope(keys, from_numpy(np.arange(4, dtype=np.int32)), 32, RopeMode.NEOX)
    rows = from_numpy(np.array([1, 2, 3, 4]))
    y = ops.set_rows(cache, ops.reshape_2d(turned, 64, 4), rows)
    assert kernels([y]) == ["rope_f32", "set_rows_f32"]


# --- bias ---------------------------------------------------------------------------------------


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


# --- activations --------------------------------------------------------------------------------


def test_activations_are_quantized_once_for_all_that_read_them() -> None:
    x = computed(64, 5)
    products = [ops.mul_mat(weight("q8_0", 64, 32), x) for _ in range(3)]
    one = ["quantize_f32", "matmul_q8_0"]
    before, after = ["neg_f32", *one, *one, *one], ["neg_f32", *one, *one[1:], *one[1:]]
    check(ISAS[0], ["activations"], products, before=before, after=after)


# --- who else reads, and where things lie -------------------------------------------------------


def test_values_for_another_backend_are_made() -> None:
    x = _normed()
    y = ops.mul(x, floats(24))
    far = ops.silu(x)

    def elsewhere(*ops_there: str) -> Pin:
        return lambda node: "reference" if node.op and node.op.name in ops_there else None

    assert kernels([y], pin=elsewhere("silu")) == ["neg_f32", "rms_norm_mul_f32"]
    assert kernels([y, far], pin=elsewhere("silu")) == ["neg_f32", "rms_norm_f32", "mul_f32"]
    assert kernels([y], pin=elsewhere("mul")) == ["neg_f32", "rms_norm_f32"]


def test_every_node_that_someone_looks_at_is_computed() -> None:
    """As a dump of all values asks for them: by making every node an output."""
    x = floats(24, 3)
    total = ops.add(x, computed(24, 3))
    normed = ops.mul(ops.rms_norm(total, 1e-5), floats(24))
    y = gated("f32", "swiglu", 24, 33, normed)
    graph = Graph(y)
    assert kernels(graph.nodes) == kernels([y], "none")
    assert len(kernels([y])) == 3 < len(graph.nodes)


def test_without_being_told_what_is_wanted_a_plan_computes_all() -> None:
    memory = np.zeros(1 << 12, np.uint8)
    x = floats(8)
    t = ops.rms_norm(x, 1e-5)
    y = ops.mul(t, floats(8))
    places = _places(memory, {x: 0, t: 256, y: 256, y.src[1]: 512})
    plan = CpuBackend(1).plan([t, y], places)
    assert plan.kernels == ("rms_norm_f32", "mul_f32")
    assert CpuBackend(1).plan([t, y], places, {y}).kernels == ("rms_norm_mul_f32",)


@pytest.mark.parametrize(("at", "fused"), [(256, True), (0, True), (32, False), (512, False)])
def test_results_do_not_overwrite_what_is_still_to_be_read(at: int, fused: bool) -> None:
    """y on the rows of x goes; a little further on, or on the weight, does not."""
    memory = np.zeros(1 << 12, np.uint8)
    x = floats(8, 3)
    t = ops.rms_norm(x, 1e-5)
    y = ops.mul(t, floats(8))
    places = _places(memory, {x: 0, t: 1024, y: at, y.src[1]: 512})
    plan = CpuBackend(1).plan([t, y], places, {y})
    assert (len(plan.kernels) == 1) == fused


def test_a_product_does_not_overwrite_its_x() -> None:
    memory = np.zeros(1 << 14, np.uint8)
    x = floats(16, 3)
    gate, up = (ops.mul_mat(weight("f32", 16, 16), x) for _ in range(2))
    y = ops.swiglu_split(gate, up)
    for at, n in ((4096, 1), (0, 3)):
        where = {x: 0, gate: 4096, up: 8192, y: at, gate.src[0]: 10240, up.src[0]: 12288}
        assert len(CpuBackend(1).plan([gate, up, y], _places(memory, where), {y}).kernels) == n


def _places(memory: np.ndarray, offsets: dict[Tensor, int]) -> Places:
    storage = Storage(memory)
    return {tensor: Place(storage, offset) for tensor, offset in offsets.items()}


# --- the switch ---------------------------------------------------------------------------------


def test_passes_are_chosen_by_name() -> None:
    assert chosen("all") == chosen(NAMES) == frozenset(NAMES)
    assert chosen("none") == chosen([]) == frozenset()
    assert chosen("norm,rope") == {"norm", "rope"}
    with pytest.raises(BackendError, match="no fusion 'everything'; there are norm, residual"):
        CpuBackend(1, fusion="everything")


def test_settings_tell_what_is_off() -> None:
    assert "fusion" not in CpuBackend(1, fusion="all").settings()
    off = CpuBackend(1, fusion=["norm", "residual", "glu", "rope"]).settings()
    assert off.endswith("without fusion of bias, activations")


def test_the_environment_chooses_where_no_one_else_does() -> None:
    code = """if True:
        from ggmlpy.backends.cpu.backend import CpuBackend
        print(sorted(CpuBackend(1).fusion), sorted(CpuBackend(1, fusion="bias").fusion))"""
    for given, want in (("none", "[]"), ("norm,glu", "['glu', 'norm']")):
        env = {**os.environ, "GGMLPY_CPU_FUSION": given}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == f"{want} ['bias']"
