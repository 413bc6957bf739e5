"""Grouping: which steps become one although others lie between, and all that prevents it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ggmlpy import ops
from ggmlpy.backends.null import NullBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, zeros
from ggmlpy.ops.rope import RopeMode
from ggmlpy.sched.executable import Executable
from tests.core.fusible import computed, floats, ids, ops_of, steps, weight

STORES = "rope+rope+set_rows+set_rows"
THREE = "mul_mat+mul_mat+mul_mat"


def rotated(x: Tensor, positions: Tensor, base: float = 1e4) -> Tensor:
    return ops.rope_ext(
        x, positions, None, x.ne[0], RopeMode.NEOX, 0, base, 1.0, 0.0, 1.0, 0.0, 0.0
    )


class Layer:
    """Queries, keys and values of T tokens in the order of a model."""

    def __init__(
        self, T: int = 3, D: int = 8, H: int = 4, Hk: int = 2, k_base: float = 1e4
    ) -> None:
        self.x = computed(24, T)
        self.positions = ids(*range(T), type="int32")
        self.rows = ids(*range(5, 5 + T))
        self.v_rows = self.rows
        self.caches = [zeros("f32", (D * Hk, 12), flags=Flag.STATE) for _ in range(2)]
        self.weights = [weight(24, D * n) for n in (H, Hk, Hk)]
        self.sizes, self.k_base = (T, D, H, Hk), k_base

    def heads(self, i: int, n_heads: int) -> Tensor:
        T, D, *_ = self.sizes
        return ops.reshape_3d(ops.mul_mat(self.weights[i], self.x), D, n_heads, T)

    def outputs(self) -> list[Tensor]:
        T, D, H, Hk = self.sizes
        query = rotated(self.heads(0, H), self.positions)
        keys = ops.reshape_2d(rotated(self.heads(1, Hk), self.positions, self.k_base), D * Hk, T)
        k_y = ops.set_rows(self.caches[0], keys, self.rows)
        values = ops.mul_mat(self.weights[2], self.x)
        return [query, k_y, ops.set_rows(self.caches[1], values, self.v_rows)]


def values_of(outputs: list[Tensor], passes: str) -> list[bytes]:
    graph = Graph(*outputs)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            leaf.array()[:] = 0
    executable = Executable(graph, [ReferenceBackend()], passes=passes)
    for _ in range(2):
        executable.run()
    return [executable.raw(y).tobytes() for y in outputs]


def test_a_layer_is_two_steps_of_the_same_bits() -> None:
    outputs = Layer().outputs()
    *_, products, store = steps(outputs)
    assert (products.op, store.op) == (THREE, STORES)
    query, keys, values = outputs
    assert store.results == {"q_y": query, "k_y": keys, "v_y": values}
    assert store.node is keys
    assert values_of(outputs, "all") == values_of(outputs, "none")


def test_operands_of_products_are_numbered() -> None:
    layer = Layer()
    step = next(step for step in steps(layer.outputs()) if step.op == THREE)
    names = dict(zip(("weight", "weight_2", "weight_3"), layer.weights, strict=True))
    assert step.operands == {**names, "x": layer.x}
    assert list(step.results) == ["y", "y_2", "y_3"]


def test_results_of_a_group_do_not_share_memory() -> None:
    """A key must not take the place of a query that is rotated later."""
    outputs = Layer().outputs()
    allocation = Executable(Graph(*outputs), [NullBackend()]).allocation
    step = next(step for step in steps(outputs) if step.op == THREE)
    places = sorted(
        (at, at + root.spec.n_bytes)
        for (root, _), at in allocation.offsets.items()
        if root in step.results.values()
    )
    assert len(places) == 3
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def test_more_than_three_products_are_several_steps() -> None:
    x = computed(24, 3)
    made = ops_of([ops.mul_mat(weight(24, 5), x) for _ in range(5)])
    assert made == ["neg", THREE, "mul_mat+mul_mat"]


def test_biases_are_grouped_where_all_have_one() -> None:
    x = computed(24, 3)
    plain = ops.mul_mat(weight(24, 5), x)
    biased = [ops.add(ops.mul_mat(weight(24, 5), x), floats(5)) for _ in range(2)]
    assert ops_of([plain, *biased]) == ["neg", "mul_mat", "mul_mat+add+mul_mat+add"]


def test_products_that_differ_are_left_alone() -> None:
    x = computed(24, 3)
    first = ops.mul_mat(weight(24, 5), x)
    half = from_bytes(bytes(2 * 24 * 5), "f16", (24, 5))
    assert "+" not in "".join(ops_of([first, ops.mul_mat(half, x)])), "another type"
    assert "+" not in "".join(ops_of([first, ops.mul_mat(weight(24, 5), ops.sqr(x))])), "another x"


def test_a_product_does_not_move_before_what_it_reads() -> None:
    x = computed(24, 24)
    first = ops.mul_mat(weight(24, 24), x)
    second = ops.mul_mat(ops.sqr(first), x)  # its weight comes of the first one
    assert ops_of([second]) == ["neg", "mul_mat", "sqr", "mul_mat"]


def test_a_product_does_not_move_before_a_write_to_its_x() -> None:
    state = zeros("f32", (24, 3), flags=Flag.STATE)
    first = ops.mul_mat(weight(24, 5), state)
    written = ops.cpy(ops.repeat(ops.sum_rows(first), state), state)
    graph = [first, written, ops.mul_mat(weight(24, 5), state)]
    assert "mul_mat+mul_mat" not in ops_of(graph)


@pytest.mark.parametrize("change", ["base", "rows", "query"])
def test_stores_that_differ_are_left_alone(change: str) -> None:
    layer = Layer(k_base=1e6 if change == "base" else 1e4)
    if change == "rows":
        layer.v_rows = ids(1, 2, 3)
    query, keys, values = layer.outputs()
    if change == "query":  # that someone reads before the values are written
        factors = ops.sum_rows(ops.reshape_2d(query, 32, 3))
        values = ops.set_rows(layer.caches[1], ops.mul(values.src[0], factors), layer.rows)
    assert STORES not in ops_of([query, keys, values])


def test_a_backend_that_has_none_of_them_gets_its_own_order() -> None:
    class Without(NullBackend):
        def supports_step(self, step: Step) -> bool:
            return step.op == "rope+set_rows"

    outputs = Layer().outputs()
    made = [step.op for step in steps(outputs, "all", Without())]
    assert made == ["neg", "mul_mat", "rope", "mul_mat", "rope+set_rows", "mul_mat", "set_rows"]


def test_the_memory_of_a_query_is_taken_by_its_rotation() -> None:
    query, keys, values = Layer().outputs()
    executable = Executable(Graph(query, keys, values), [NullBackend()])
    offsets = {root: at for (root, _), at in executable.allocation.offsets.items()}
    assert offsets[query] == offsets[query.src[0].root]
