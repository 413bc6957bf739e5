"""Fusion: which nodes become one step, what a backend is told of it, and all that prevents it."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.graph.buffer import HOST
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from ggmlpy.ops.rope import RopeMode
from ggmlpy.sched.executable import Executable
from tests.core.fusible import PATTERNS, computed, floats, ids, ops_of, rope, steps, weight

SHAPES = [(1,), (5, 7), (16, 3), (33, 1, 4), (6, 5, 2, 3)]
NORM_MUL, ADD_NORM = "rms_norm+mul", "add+rms_norm+mul"
GLU = "mul_mat+mul_mat+swiglu"


def values(y: Tensor, passes: str) -> bytes:
    """By the reference; state leaves are empty before."""
    graph = Graph(y)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            leaf.array()[:] = 0
    executable = Executable(graph, [ReferenceBackend()], passes=passes)
    executable.run()
    executable.run()  # what the first run left in memory must not matter
    return executable.raw(y).tobytes()


@pytest.mark.parametrize("ne", SHAPES, ids=str)
@pytest.mark.parametrize("op", PATTERNS)
def test_a_pattern_becomes_one_step(op: str, ne: tuple[int, ...]) -> None:
    y, operands = PATTERNS[op](*ne)
    *_, step = steps([y])
    results = {"y": y}
    if op.endswith("+set_rows") and not op.startswith("rope"):
        results = {"y": step.node, "stored": y}
    assert (step.op, step.results, step.operands) == (op, results, operands)
    assert step.interior == tuple(n for n in step.nodes if n not in results.values())
    assert not step.is_fused or step.node in step.nodes


@pytest.mark.parametrize("ne", SHAPES, ids=str)
@pytest.mark.parametrize("op", PATTERNS)
def test_the_reference_gives_the_same_bits(op: str, ne: tuple[int, ...]) -> None:
    y, _ = PATTERNS[op](*ne)
    assert values(y, "all") == values(y, "none")


@pytest.mark.parametrize("op", PATTERNS)
def test_values_inside_a_step_have_no_memory(op: str) -> None:
    y, _ = PATTERNS[op](48, 3, 4) if op != "mul_mat_id+mul_mat_id+geglu" else PATTERNS[op](48, 12)
    fused, apart = (
        Executable(Graph(y), [ReferenceBackend()], passes=passes).allocation
        for passes in ("all", "none")
    )
    *_, step = steps([y])
    placed = {root for root, _ in fused.offsets}
    assert not placed & set(step.interior)
    assert placed < {root for root, _ in apart.offsets}
    assert fused.arena_bytes[HOST] <= apart.arena_bytes[HOST]
    assert fused.total_bytes[HOST] <= apart.total_bytes[HOST]


# --- norm -----------------------------------------------------------------------------------------


def normed() -> Tensor:
    return ops.rms_norm(computed(24, 3), 1e-5)


def test_a_norm_is_left_alone_where_it_must_be() -> None:
    w, x = floats(24), normed()

    def made(*outputs: Tensor) -> bool:
        return NORM_MUL in ops_of(outputs)

    assert made(ops.mul(x, w))
    assert made(ops.mul(x, floats(24, 3)))
    assert not made(ops.mul(x, w), x), "an output"
    assert not made(ops.mul(x, w), ops.reshape_1d(x, 72)), "a view of it is one"
    assert not made(ops.mul(x, w), ops.silu(x)), "another node reads it"
    assert not made(ops.mul(x, w), ops.silu(ops.reshape_1d(x, 72))), "through a view"
    assert not made(ops.mul(x, x)), "twice the same"
    assert not made(ops.mul(floats(24, 3), x)), "the second factor"
    assert not made(ops.mul(x, floats(1))), "a number"
    assert not made(ops.mul(x, floats(8))), "a weight that repeats in a row"
    assert not made(ops.mul(ops.reshape_1d(x, 72), floats(72))), "other rows"
    assert not made(ops.mul(x, ops.transpose(floats(3, 24)))), "scattered rows"
    assert not made(ops.mul(x, ops.silu(w))), "another node between them"
    x.flags |= Flag.OUTPUT
    assert not made(ops.mul(x, w)), "marked as an output"


def test_what_follows_a_norm_is_left_alone_where_it_must_be() -> None:
    y = ops.mul(normed(), floats(24))
    alone = ["neg", NORM_MUL, "add"]
    assert ops_of([ops.add(y, floats(24))], ["norm"]) == ["neg", f"{NORM_MUL}+add"]
    assert ops_of([ops.add(y, floats(24)), y], ["norm"]) == alone
    assert ops_of([ops.add(floats(24, 3), y)], ["norm"]) == alone
    assert ops_of([ops.add(y, floats(12))], ["norm"]) == alone


def test_a_norm_may_be_written_over_its_rows() -> None:
    """But over no weight: it may be one that is repeated."""
    y, operands = PATTERNS["rms_norm+mul+add"](24, 3)
    *_, step = steps([y])
    assert step.in_place == {"y": ("x", "b")}
    allocation = Executable(Graph(y), [ReferenceBackend()]).allocation
    assert allocation.offsets[y, HOST] == allocation.offsets[operands["x"], HOST]
    full = computed(24, 3)
    z = ops.mul(ops.norm(ops.sqr(full), 1e-5), full)
    allocation = Executable(Graph(z), [ReferenceBackend()]).allocation
    assert allocation.offsets[z, HOST] != allocation.offsets[full, HOST]
    assert steps([z])[-1].in_place == {"y": ("x",)}


# --- residual -------------------------------------------------------------------------------------


def test_a_sum_is_a_result_where_something_else_reads_it() -> None:
    a, b, w = computed(24, 3), computed(24, 3), floats(24)
    total = ops.add(a, b)
    y = ops.mul(ops.rms_norm(total, 1e-5), w)
    for reader in (total, ops.reshape_1d(total, 72), ops.sqr(total), ops.add(total, y)):
        fused = [step for step in steps([y, reader], ["residual"]) if step.is_fused]
        assert [step.op for step in fused] == [ADD_NORM]
        assert fused[0].results == {"y": y, "sum": total}
        assert fused[0].operands == {"a": a, "b": b, "weight": w}
    total.flags |= Flag.OUTPUT
    assert steps([y])[-1].results == {"y": y, "sum": total}


def test_both_results_of_a_residual_may_be_written_over_its_rows() -> None:
    a, b = computed(24, 3), computed(24, 3)
    total = ops.add(a, b)
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(24))
    allocation = Executable(Graph(y, total), [ReferenceBackend()]).allocation
    places = {allocation.offsets[x, HOST] for x in (a, b)}
    assert {allocation.offsets[x, HOST] for x in (y, total)} == places
    assert allocation.arena_bytes[HOST] == 2 * 5 * 64


def test_the_inner_norm_has_an_epsilon_of_its_own() -> None:
    y, _ = PATTERNS["rms_norm+mul+add+rms_norm+mul"](24, 3)
    *_, step = steps([y])
    assert step.node.op is not None
    assert (step.params, step.node.op.params()) == ({"inner_eps": 1e-6}, {"eps": 1e-5})


def test_a_sum_is_left_alone_where_it_must_be() -> None:
    def made(total: Tensor, w: Tensor | None = None) -> bool:
        y = ops.mul(ops.rms_norm(total, 1e-5), floats(24) if w is None else w)
        return ADD_NORM in ops_of([y])

    a = computed(24, 3)
    total = ops.add(a, floats(24, 3))
    assert made(total)
    y = ops.mul(ops.rms_norm(floats(24, 3), 1e-5), floats(24))
    assert ops_of([total, y]) == ["neg", "add", "rms_norm+mul"], "of something else"
    assert not made(ops.add(a, floats(24))), "repeated"
    assert not made(ops.add(a, ops.transpose(floats(3, 24)))), "scattered rows"
    assert not made(total, a), "the sum may lie on the weight"
    assert not made(total, total), "weighed by itself"
    y = ops.mul(ops.norm(total, 1e-5), floats(24))
    assert ADD_NORM not in ops_of([y]), "another norm"
    x = normed()
    total = ops.add(ops.mul(x, floats(24)), x)
    y = ops.mul(ops.rms_norm(total, 1e-5), floats(24))
    assert ops_of([y]) == ["neg", "rms_norm", "mul", ADD_NORM], "the inner norm is read twice"


# --- glu ------------------------------------------------------------------------------------------


def test_products_are_left_alone_where_they_must_be() -> None:
    x, a, b = floats(64, 3), weight(64, 32), weight(64, 32)
    gate, up = ops.mul_mat(a, x), ops.mul_mat(b, x)

    def made(*outputs: Tensor) -> bool:
        return GLU in ops_of(outputs)

    assert made(ops.swiglu_split(gate, up))
    assert made(ops.mul(ops.swiglu_split(up, gate), floats(32))), "in the other order"
    assert not made(ops.swiglu_split(gate, up), gate), "an output"
    assert not made(ops.swiglu_split(gate, up), ops.neg(up)), "another reader"
    assert not made(ops.swiglu_split(gate, gate)), "one product"
    assert not made(ops.swiglu(gate)), "halves of one"
    assert not made(ops.swiglu_split(gate, ops.mul_mat(b, floats(64, 3)))), "two x"
    half = from_bytes(bytes(64 * 32 * 2), "f16", (64, 32))
    assert not made(ops.swiglu_split(gate, ops.mul_mat(half, x))), "two types"
    assert not made(ops.swiglu_split(gate, ops.add(up, floats(32)))), "a bias"
    x = floats(64, 3, 2)
    one, several = (ops.mul_mat(w, x) for w in (a, weight(64, 32, 2)))
    assert not made(ops.swiglu_split(one, several)), "two shapes"
    assert not made(gate, up, ops.swiglu_split(floats(32), floats(32))), "of no products"


def test_products_in_the_other_order_keep_their_names() -> None:
    x, a, b = floats(64, 3), weight(64, 32), weight(64, 32)
    first, second = ops.mul_mat(a, x), ops.mul_mat(b, x)
    *_, step = steps([first * 1.0, second * 1.0, ops.swiglu_split(second, first)])
    assert step.op == "swiglu"
    (step,) = steps([first, ops.swiglu_split(second, first)][1:])
    assert step.operands == {"gate": b, "up": a, "x": x}


# --- rope -----------------------------------------------------------------------------------------


def test_keys_are_left_alone_where_they_must_be() -> None:
    y, _ = rope(16, 3, 4)
    view, rows, into = y.src
    keys = view.src[0]

    def made(*outputs: Tensor) -> bool:
        return "rope+set_rows" in ops_of(outputs)

    assert made(y)
    assert made(ops.set_rows(into, view, rows))
    assert not made(y, keys), "an output"
    assert not made(y, ops.neg(keys)), "another reader"
    some = ops.view_2d(keys, 96, 2, view.nb[1], 0)
    assert not made(ops.set_rows(into, some, ids(4, 1))), "some of the rows"
    overlapping = ops.view_2d(keys, 96, 4, 4, 0)
    assert not made(ops.set_rows(into, overlapping, rows)), "rows that overlap"
    twice = ops.rope(floats(32, 3, 4, 2), ids(1, 2, 3, 4, type="int32"), 32, RopeMode.NEOX)
    half = ops.view_2d(twice, 96, 4, 96 * 4, 0)
    assert not made(ops.set_rows(into, half, rows)), "half of them"
    per_head = zeros("f16", (32, 12), flags=Flag.STATE)
    whole = ops.set_rows(per_head, ops.reshape_2d(keys, 32, 12), ids(*range(12)))
    assert not made(whole), "a row a head"


# --- scan -----------------------------------------------------------------------------------------


def test_a_scan_is_left_alone_where_it_must_be() -> None:
    def made(
        n_kept: int = 1, first: int = 0, *, other_table: bool = False, moved: int = 0
    ) -> list[str]:
        """Of one sequence of 3 tokens; `first` is the first number of what is stored. Rows that
        are written count from row `moved` on."""
        D = 4
        q, k, v, decay, beta = (floats(n, 1, 3) for n in (D, D, D, 1, 1))
        table, other = (zeros("f32", (D * D, 2), flags=Flag.STATE) for _ in range(2))
        row, spans = ids(0, type="int32"), from_numpy(np.array([[0, 3]], np.int32))
        state = ops.reshape_4d(ops.get_rows(table, row), D, D, 1, 1)
        scanned = ops.gated_delta_net(q, k, v, decay, beta, state, n_kept, spans=spans)
        after = ops.view_2d(scanned, D * D, 1, 4 * D * D, 4 * (D * 3 + first))
        written = other if other_table else table
        if moved:
            written = ops.view_2d(table, D * D, 2 - moved, table.nb[1], moved * table.nb[1])
        return ops_of([ops.set_rows(written, after, row)])

    alone = ["get_rows", "gated_delta_net", "set_rows"]
    assert made() == ["+".join(alone)]
    assert made(2) == alone  # states of two tokens are kept
    assert made(2, first=16) == alone  # the one before
    assert made(other_table=True) == alone
    assert made(moved=1) == alone  # row 0 is another one there


def test_a_scan_is_left_alone_where_rows_are_no_states() -> None:
    D = 4
    q, k, v, decay, beta = (floats(n, 1, 3) for n in (D, D, D, 1, 1))
    table = zeros("f32", (D * D, 2), flags=Flag.STATE)
    spans = from_numpy(np.array([[0, 3]], np.int32))
    state = ops.reshape_4d(ops.get_rows(table, ids(0, type="int32")), D, D, 1, 1)
    scanned = ops.gated_delta_net(q, k, v, decay, beta, state, spans=spans)
    halves = ops.view_2d(scanned, D * D // 2, 2, 2 * D * D, 4 * D * 3)
    narrow = ops.reshape_2d(table, D * D // 2, 4)
    y = ops.set_rows(narrow, halves, ids(0, 2, type="int32"))
    assert ops_of([y]) == ["get_rows", "gated_delta_net", "set_rows"]


def keys_of(x: Tensor, cache: Tensor) -> Tensor:
    """`x` [32, 2, 4] rotated and written to rows 1 to 4."""
    rotated = ops.rope(x, ids(*range(4), type="int32"), 32, RopeMode.NEOX)
    return ops.set_rows(cache, ops.reshape_2d(rotated, 64, 4), ids(1, 2, 3, 4))


def test_a_cache_is_not_written_while_keys_of_it_are_read() -> None:
    cache = zeros("f32", (64, 12), flags=Flag.STATE)
    x, behind = (ops.view_3d(cache, 32, 2, 4, 128, 256, 256 * row) for row in (0, 8))
    assert ops_of([keys_of(x, cache)]) == ["rope", "set_rows"]
    rows = ops.view_2d(cache, 64, 6, 256, 0)
    assert ops_of([keys_of(behind, rows)]) == ["rope+set_rows"], "other rows of it"
    assert ops_of([keys_of(behind, cache)]) == ["rope", "set_rows"], "it may write any row"
    made = ops.neg(cache)  # the same in memory of the graph
    x = ops.view_3d(made, 32, 2, 4, 128, 256, 0)
    assert ops_of([keys_of(x, made)]) == ["neg", "rope", "set_rows"]
    array = np.zeros((12, 64), np.float32)  # two leaves in one array
    x = ops.view_3d(from_numpy(array), 32, 2, 4, 128, 256, 0)
    assert ops_of([keys_of(x, from_numpy(array))]) == ["rope", "set_rows"]


# --- bias -----------------------------------------------------------------------------------------


def test_a_bias_is_left_alone_where_it_must_be() -> None:
    y = ops.mul_mat(weight(64, 32), floats(64, 3))
    alone, fused = ["mul_mat", "add"], ["mul_mat+add"]
    assert ops_of([ops.add(y, floats(32))]) == fused
    assert ops_of([ops.add(y, floats(32)), y]) == alone, "an output"
    assert ops_of([ops.add(floats(32, 3), y)]) == alone, "the second term"
    assert ops_of([ops.add(y, floats(32, 3))]) == alone, "a row for each"
    assert ops_of([ops.add(y, floats(1))]) == alone, "a number"
    assert ops_of([ops.add(y, computed(32))])[-1] == "add", "nothing that is computed"
    assert ops_of([ops.add(y, ops.transpose(floats(1, 32)))]) == alone, "scattered"
