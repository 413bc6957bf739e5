"""Assignment, splits and copies: part of a graph on one backend, part on another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Places, Plan, Weight
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.errors import KernelError
from ggmlpy.graph.buffer import HostBufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from ggmlpy.sched.assignment import Pin, assign
from ggmlpy.sched.compute import compute
from ggmlpy.sched.executable import Executable
from ggmlpy.sched.scheduler import cut, read_after


def by_op(**backend: str) -> Pin:
    """Pins nodes by the name of their op."""

    def pin(node: Tensor) -> str | None:
        assert node.op is not None
        return backend.get(node.op.name)

    return pin


RNG = np.random.default_rng(7)


class Other(ReferenceBackend):
    """The reference under another name: a second memory that must be copied to and from."""

    name = "other"

    def __init__(self, only: frozenset[str] = frozenset()) -> None:
        self._only = only
        self.buffer_type = HostBufferType(self.name, self.name)

    def supports(self, node: Tensor) -> bool:
        assert node.op is not None
        return super().supports(node) and (not self._only or node.op.name in self._only)


class Island(Other):
    """Cannot read host memory: weights are uploaded once, inputs before every run."""

    name = "island"

    def __init__(self) -> None:
        super().__init__()
        self.buffer_type.is_host = False  # though numpy sees it: this is the reference

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        for step in steps:
            for tensor in step.tensors:
                assert places[tensor].buffer.type is self.buffer_type, (
                    f"{tensor} is not on the island"
                )
        return super().plan(steps, places)


def values(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_a_node_goes_to_the_first_backend_that_supports_it() -> None:
    x = from_numpy(values(4))
    y = ops.sqr(ops.silu(x))
    first, second = Other(frozenset({"silu"})), ReferenceBackend()
    assigned = assign(Graph(y), [first, second])
    assert [b.name for b in assigned.values()] == ["other", "reference"]


def test_values_stay_where_they_were_made() -> None:
    x = from_numpy(values(4))
    y = ops.neg(ops.sqr(ops.silu(x)))
    assigned = assign(Graph(y), [ReferenceBackend(), Other()], by_op(silu="other"))
    assert [b.name for b in assigned.values()] == ["other", "other", "other"]


def test_weights_draw_their_product() -> None:
    island = Island()
    weight = from_bytes(values(4, 32).tobytes(), "f32", (32, 4))
    island.load_weights([Weight(weight, frozenset({"mul_mat"}))])
    y = ops.mul_mat(weight, ops.silu(from_numpy(values(3, 32))))
    assigned = assign(Graph(y), [ReferenceBackend(), island])
    assert {b.name for b in assigned.values()} == {"island"}  # and what comes before it follows


def test_no_backend_is_an_error_that_names_node_types_and_backends() -> None:
    y = ops.sqr(from_numpy(values(4))).named("square")
    with pytest.raises(KernelError, match=r"square: no kernel for sqr\(f32\) on other"):
        assign(Graph(y), [Other(frozenset({"silu"}))])
    with pytest.raises(KernelError, match="'gpu'"):
        assign(Graph(y), [ReferenceBackend()], lambda node: "gpu")


def taking_turns(*names: str) -> Pin:
    """Every node on another backend than the one before: as many borders as there can be."""
    turn = itertools.cycle(names)
    return lambda node: next(turn)


def llama_like() -> tuple[Tensor, ...]:
    """Norm, product, view, write to a state, read of it, and a second output from the middle."""
    x = from_numpy(values(5, 32), name="x")
    w = from_bytes(values(32, 32).tobytes(), "f32", (32, 32), name="w")
    h = ops.rms_norm(ops.mul(x, x), 1e-5)
    h = ops.mul_mat(w, h)
    k = ops.permute(ops.reshape_3d(h, 8, 4, 5), 0, 2, 1, 3)
    k = ops.cont(k)
    s = ops.soft_max(ops.mul_mat(k, k))
    out = ops.add(ops.sum_rows(ops.sum_rows(s)), ops.sum(h))
    return ops.scale(out, 2.0), h


def test_any_mix_of_backends_gives_the_same_values() -> None:
    outputs = llama_like()
    want = Executable(Graph(*outputs), [ReferenceBackend()])
    want.run()
    backends: list[Backend] = [ReferenceBackend(), Other(), Island()]
    mixed = Executable(Graph(*outputs), backends, taking_turns("reference", "other", "island"))
    assert len(mixed.schedule.splits) > 5
    assert any(s.copies for s in mixed.schedule.splits)
    for _ in range(2):  # the second run must not see what the first left behind
        mixed.run()
        for output in outputs:
            np.testing.assert_array_equal(mixed.read(output), want.read(output))


def test_each_split_is_told_which_of_its_values_are_read_after_it() -> None:
    x = from_numpy(values(8))
    a = ops.neg(x)
    b = ops.reshape_2d(ops.sqr(a), 4, 2)
    c = ops.silu(b)
    d = ops.add(ops.sqr(c), c)
    graph = Graph(d, ops.reshape_1d(a, 8))
    backends = [ReferenceBackend(), Other(frozenset({"silu"}))]
    splits = cut(graph, assign(graph, backends, by_op(silu="other"))).splits
    assert [[n.op and n.op.name for n in s.nodes] for s in splits] == [
        ["neg", "sqr"], ["silu"], ["sqr", "add"],
    ]  # fmt: skip
    assert read_after(graph, splits) == [{a, b.root}, {c}, {d}]


def test_weights_are_uploaded_once_and_inputs_every_run() -> None:
    island = Island()
    x = zeros("f32", (32, 2), flags=Flag.INPUT)
    w = from_bytes(values(4, 32).tobytes(), "f32", (32, 4))
    y = ops.mul_mat(w, x)
    executable = Executable(Graph(y), [island])
    assert x.place is not None
    for seed in range(3):
        fresh = np.random.default_rng(seed).standard_normal(64, dtype=np.float32)
        x.place.host_bytes[:] = fresh.view(np.uint8)
        executable.run()
        want = fresh.reshape(2, 32) @ w.numpy().T
        np.testing.assert_allclose(executable.read(y)[0, 0], want, rtol=1e-5, atol=1e-5)


def test_a_copy_is_made_once_for_all_its_readers() -> None:
    x = ops.silu(from_numpy(values(8)))
    y = ops.add(ops.sqr(x), ops.neg(x))
    graph = Graph(y)
    pin = by_op(silu="reference", sqr="other", neg="other", add="other")
    schedule = cut(graph, assign(graph, [Other(), ReferenceBackend()], pin))
    assert [len(s.copies) for s in schedule.splits] == [0, 1]


def test_every_node_of_a_split_brings_what_it_is_the_first_to_need() -> None:
    x, held = from_numpy(values(8)), from_numpy(values(8))
    a, b = ops.silu(x), ops.neg(x)
    y = ops.mul(ops.add(ops.sqr(a), b), held)
    pin = by_op(silu="reference", neg="reference", sqr="island", add="island", mul="island")
    executable = Executable(Graph(a, b, y), [ReferenceBackend(), Island()], pin)
    first, second = executable.schedule.splits
    assert [n.op and n.op.name for n in first.nodes] == ["silu", "neg"]
    sources = [(copy.root, copy.source and copy.source.name) for copy in second.copies]
    assert sources == [(a, "host"), (b, "host")]
    assert list(executable.schedule.uploads) == [held]  # before the first split
    executable.run()
    silu = x.numpy() / (1 + np.exp(-x.numpy()))
    want = (silu**2 - x.numpy()) * held.numpy()
    np.testing.assert_allclose(executable.read(y), np.broadcast_to(want, y.ne[::-1]), rtol=1e-6)


def test_a_write_makes_older_copies_stale() -> None:
    """set_rows on the second backend, then a read on the first: it must see the new rows."""
    base = ops.scale(from_numpy(np.ones((4, 8), np.float32)), 1.0)
    first_read = ops.sum(base)
    ids = from_numpy(np.array([1], np.int64))
    written = ops.set_rows(base, from_numpy(np.full((1, 8), 9, np.float32)), ids)
    second_read = ops.sum(written)
    pin = by_op(set_rows="other", scale="reference", sum="reference")
    executable = Executable(
        Graph(first_read, written, second_read), [ReferenceBackend(), Other()], pin
    )
    executable.run()
    assert executable.read(first_read).item() == 32
    assert executable.read(second_read).item() == 24 + 72
    np.testing.assert_array_equal(executable.read(written)[0, 0, :, 0], [1, 9, 1, 1])


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_leaf_that_a_device_wrote_to_has_its_new_values_after_each_run(
    seed: int, fallback: bool
) -> None:
    """t += w t + 1, where the weight lies on a device and t is an array of the host."""
    device = MockBackend(seed=seed)
    w = from_bytes(np.eye(4, 32, dtype=np.float32).tobytes(), "f32", (32, 4))
    device.load_weights([Weight(w, frozenset({"mul_mat"}))])
    array, want = np.zeros((1, 32), np.float32), np.zeros((1, 32), np.float32)
    t = from_numpy(array)
    part = ops.view_2d(t, 4, 1, t.nb[1], 0)
    y = ops.cpy(ops.scale_bias(ops.add(ops.mul_mat(w, t), part), 1.0, 1.0), part)
    backends: list[Backend] = [device, *([ReferenceBackend()] if fallback else [])]
    executable = Executable(Graph(y), backends)
    homes = [s.backend.name for s in executable.schedule.splits]
    assert homes == (["mock", "reference"] if fallback else ["mock"])
    for _ in range(3):
        executable.run()
        want[:, :4] = 2 * want[:, :4] + 1
        np.testing.assert_array_equal(executable.read(y)[0, 0], want[:, :4])
        np.testing.assert_array_equal(array, want)


def test_a_leaf_is_copied_back_to_its_place_before_a_split_that_reads_it_there() -> None:
    array = np.zeros((1, 8), np.float32)
    t = from_numpy(array)
    before = ops.neg(t)  # in place, on the host
    written = ops.cpy(ops.scale_bias(before, -1.0, 1.0), t)
    between = ops.sum(written)  # in place again
    again = ops.cpy(ops.sqr(ops.scale_bias(written, 1.0, 2.0)), t)
    pin = by_op(neg="reference", sum="reference", cpy="mock", scale_bias="mock", sqr="mock")
    device = MockBackend(seed=3)
    executable = Executable(Graph(before, between, again), [device, ReferenceBackend()], pin)
    value = 0.0
    for _ in range(3):
        executable.run()
        np.testing.assert_array_equal(executable.read(before), np.full((1, 1, 1, 8), -value))
        value += 1
        assert executable.read(between).item() == 8 * value
        value = (value + 2) ** 2
        assert (array == value).all()


def test_state_that_a_backend_cannot_read_in_place_is_copied_in_every_run() -> None:
    cache = zeros("f32", (8, 4), flags=Flag.STATE, name="cache")
    executable = Executable(Graph(ops.sqr(cache)), [Island()])
    assert not executable.schedule.uploads
    for i in range(3):
        cache.array()[:] = i
        executable.run()
        assert (executable.read(executable.graph.outputs[0]) == i * i).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_fallback_reads_state_as_the_nodes_before_it_left_it(seed: int) -> None:
    """Read, write, two reads, write, read: a copy for each state of the cache, and one only."""
    device = MockBackend(seed=seed)
    cache = zeros("f32", (8, 4), flags=Flag.STATE, buffer_type=device.buffer_type)
    x, ids = from_numpy(np.ones((1, 8), np.float32)), from_numpy(np.array([2]))
    sums = [ops.sum(cache)]
    one = ops.set_rows(cache, ops.add(x, ops.view_2d(cache, 8, 1, cache.nb[1], 64)), ids)
    sums += [ops.sum(one), ops.neg(ops.sum(one))]
    two = ops.set_rows(one, ops.scale(ops.view_2d(one, 8, 1, one.nb[1], 64), 2.0), ids)
    sums.append(ops.sum(two))
    pin = by_op(set_rows="mock", add="mock", scale="mock", sum="reference", neg="reference")
    executable = Executable(Graph(*sums), [device, ReferenceBackend()], pin)
    copies = [[c.root for c in s.copies] for s in executable.schedule.splits if s.copies]
    assert copies == [[cache]] * 3
    value = 0
    for _ in range(3):
        executable.run()
        want = [8 * value, 8 * (value + 1), -8 * (value + 1), 16 * (value + 1)]
        assert [executable.read(s).item() for s in sums] == want
        value = 2 * (value + 1)


def test_state_that_a_backend_cannot_write_is_refused() -> None:
    cache = zeros("f32", (8, 4), flags=Flag.STATE, name="cache")
    y = ops.cpy(ops.sqr(cache), cache).named("k_new")
    with pytest.raises(KernelError, match=r"k_new \(cpy\) writes cache, .* host, .* on island"):
        Executable(Graph(y), [Island()])


def test_an_executable_tells_its_threads_and_where_numpy_can_look() -> None:
    class Three(Other):
        def plan(self, steps: Sequence[Step], places: Places) -> Plan:
            plan = super().plan(steps, places)
            plan.n_threads = 3
            return plan

    x = ops.silu(from_numpy(values(8)))
    y, z = ops.sqr(x), ops.neg(x)
    pin = by_op(silu="reference", sqr="other", neg="island")
    executable = Executable(Graph(y, z), [ReferenceBackend(), Three(), Island()], pin)
    assert [s.backend.name for s in executable.schedule.splits] == ["reference", "other", "island"]
    assert executable.n_threads == 3
    assert (executable.on_host(y), executable.on_host(z)) == (True, False)


def test_compute_takes_pins_and_fallback() -> None:
    x = from_numpy(values(8))
    y = ops.sqr(ops.silu(x))
    got = compute(y, backend="null", pin=lambda node: "reference")
    np.testing.assert_allclose(got, compute(y, backend="reference"))
