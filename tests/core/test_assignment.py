"""Which backend gets which node: each rule by itself, and what wins where two apply."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Weight
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import KernelError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from ggmlpy.sched.assignment import Pin, assign


def x(*shape: int) -> Tensor:
    return from_numpy(np.ones(shape or (4, 32), np.float32))


def weight(on: Backend | None = None, n_out: int = 32) -> Tensor:
    leaf = from_bytes(np.ones(32 * n_out, np.float32).tobytes(), "f32", (32, n_out), name="w")
    if on is not None:
        on.load_weights([Weight(leaf, frozenset({"mul_mat"}))])
    return leaf


def names(*outputs: Tensor, backends: list[Backend], pin: Pin | None = None) -> dict[str, str]:
    """The backend of each node, by the names of ops."""
    assigned = assign(Graph(*outputs), backends, pin)
    return {node.op.name: b.name for node, b in assigned.items() if node.op is not None}


def chain(w: Tensor) -> Tensor:
    """sqr, silu, mul_mat, neg, abs"""
    return ops.abs(ops.neg(ops.mul_mat(w, ops.silu(ops.sqr(x())))))


def test_without_anything_to_go_by_the_first_backend_runs_all() -> None:
    device = MockBackend()
    assert set(names(chain(weight()), backends=[device, ReferenceBackend()]).values()) == {
        "reference"  # the weight lies on the host
    }
    assert set(names(ops.sqr(x()), backends=[device]).values()) == {"mock"}


def test_a_device_takes_its_weights_product_and_the_neighbours_that_it_supports() -> None:
    device = MockBackend(only=("mul_mat", "silu", "neg"))
    found = names(chain(weight(device)), backends=[device, ReferenceBackend()])
    on_device = {op for op, name in found.items() if name == "mock"}
    assert on_device == {"mul_mat", "silu", "neg"}


def test_two_devices_meet_where_their_weights_do() -> None:
    one, two = MockBackend("mock:0"), MockBackend("mock:1")
    h = ops.mul_mat(weight(one), ops.sqr(x()))
    y = ops.neg(ops.mul_mat(weight(two), ops.silu(h)))
    nodes = assign(Graph(y), [one, two, ReferenceBackend()])
    assert [b.name for b in nodes.values()] == ["mock:0"] * 3 + ["mock:1"] * 2


def test_state_is_written_and_read_where_it_lies() -> None:
    device = MockBackend()
    state = zeros("f32", (32, 8), flags=Flag.STATE, buffer_type=device.buffer_type)
    ids = from_numpy(np.arange(4))
    written = ops.set_rows(state, ops.mul_mat(weight(), x()), ids)
    found = names(ops.sum_rows(written), backends=[device, ReferenceBackend()])
    assert found == {"mul_mat": "reference", "set_rows": "mock", "sum_rows": "mock"}


def test_a_pin_wins_over_a_weight() -> None:
    device = MockBackend()

    def pin(node: Tensor) -> str | None:
        return "reference" if node.op is not None and node.op.name == "mul_mat" else None

    found = names(chain(weight(device)), backends=[device, ReferenceBackend()], pin=pin)
    assert found["mul_mat"] == "reference"


@pytest.mark.parametrize(("n_tokens", "where"), [(31, "reference"), (32, "mock")])
def test_a_large_product_brings_its_weight_to_a_device(n_tokens: int, where: str) -> None:
    y = ops.mul_mat(weight(), x(n_tokens, 32))
    device = MockBackend(op_offload=True)
    assert names(y, backends=[device, ReferenceBackend()]) == {"mul_mat": where}
    assert names(y, backends=[MockBackend(), ReferenceBackend()]) == {"mul_mat": "reference"}


def test_of_backends_in_one_memory_the_first_that_can_gets_the_node() -> None:
    class Few(ReferenceBackend):
        name = "few"

        def supports(self, node: Tensor) -> bool:
            return node.op is not None and node.op.name in ("sqr", "neg") and super().supports(node)

    y = ops.neg(ops.silu(ops.sqr(x())))
    found = names(y, backends=[Few(), ReferenceBackend()])
    assert found == {"sqr": "few", "silu": "reference", "neg": "few"}


def test_a_node_that_nothing_supports_is_named() -> None:
    y = ops.silu(x()).named("gate")
    with pytest.raises(KernelError, match=r"gate: no kernel for silu\(f32\) on mock or mock:1"):
        assign(Graph(y), [MockBackend(only=("neg",)), MockBackend("mock:1", only=())])
