"""Assignment, splits, copies and placement: part of a graph on one backend, part on another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Places, Plan, Weight
from ggmlpy.backends.null import NullBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import KernelError
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.buffer import ALIGNMENT, HOST, HostBufferType, Place, aligned_bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from ggmlpy.sched.assignment import Pin, assign
from ggmlpy.sched.compute import compute
from ggmlpy.sched.executable import ArenaPool, Executable
from ggmlpy.sched.scheduler import cut, wanted_roots


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

    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> Plan:
        for node in nodes:
            for tensor in (*node.src, node):
                assert places[tensor].buffer.type is self.buffer_type, (
                    f"{tensor} is not on the island"
                )
        return super().plan(nodes, places, wanted)


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
    assert wanted_roots(graph, splits) == [{a, b.root}, {c}, {d}]


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
    want = (_evaluate(a) ** 2 - x.numpy()) * held.numpy()
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


def test_state_that_a_backend_cannot_read_is_refused() -> None:
    cache = zeros("f32", (8, 4), flags=Flag.STATE, name="cache")
    with pytest.raises(KernelError, match=r"cache.*island does not read"):
        Executable(Graph(ops.sqr(cache)), [Island()])


def test_an_executable_tells_its_threads_and_where_numpy_can_look() -> None:
    class Three(Other):
        def plan(
            self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
        ) -> Plan:
            plan = super().plan(nodes, places, wanted)
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


# --- placement ----------------------------------------------------------------------------------


class Overlaps(NullBackend):
    """Checks, as nodes run in order, that no node's result lies on a value still to be read."""

    name = "overlaps"

    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> Plan:
        last_read = {s.root: i for i, node in enumerate(nodes) for s in (*node.src, node)}
        for i, node in enumerate(nodes):
            if node.root.is_leaf or node.root is not node:
                continue
            for other, last in last_read.items():
                if other is node or other.is_leaf or last <= i or other not in nodes[:i]:
                    continue
                assert not _overlap(places[node], node, places[other], other), f"{node} on {other}"
            for source in node.src:  # written over its source only where the op allows it
                root = source.root
                if root in places and _overlap(places[node], node, places[root], root):
                    assert node.op is not None
                    assert node.op.in_place
                    assert places[node].offset == places[root].offset
        return super().plan(nodes, places, wanted)


def _overlap(p: Place, a: Tensor, q: Place, b: Tensor) -> bool:
    if p.buffer is not q.buffer:
        return False
    return p.offset < q.offset + b.spec.n_bytes and q.offset < p.offset + a.spec.n_bytes


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["silu", "add", "mul", "norm", "concat", "cont_t", "view", "sum"]),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=25,
)


def random_graph(steps: Sequence[tuple[str, int, int]]) -> Graph:
    """A graph whose nodes take any earlier tensors: long and short lives, views, reuse."""
    made: list[Tensor] = [from_numpy(np.ones((8, 8), np.float32))]
    for kind, i, j in steps:
        a, b = made[i % len(made)], made[j % len(made)]
        if kind == "silu":
            made.append(ops.silu(a))
        elif kind in ("add", "mul") and b.spec.can_repeat_to(a.spec):
            made.append((ops.add if kind == "add" else ops.mul)(a, b))
        elif kind == "norm":
            made.append(ops.rms_norm(a, 1e-5))
        elif kind == "concat" and a.ne[1:] == b.ne[1:] and a.ne[0] < 64:
            made.append(ops.concat(a, b, 0))
        elif kind == "cont_t":
            made.append(ops.cont(ops.transpose(a)))
        elif kind == "view" and a.spec.contiguous and a.ne[0] > 1:
            made.append(ops.view_1d(a, a.ne[0] - 1, 4))
        elif kind == "sum":
            made.append(ops.sum_rows(a))
    return Graph(made[-1], made[len(made) // 2])


@given(STEPS)
@settings(deadline=None)
def test_nothing_is_overwritten_while_it_is_needed(steps: list[tuple[str, int, int]]) -> None:
    graph = random_graph(steps)
    Executable(graph, [Overlaps()])


@given(STEPS)
@settings(deadline=None)
def test_memory_reuse_never_changes_a_value(steps: list[tuple[str, int, int]]) -> None:
    graph = random_graph(steps)
    executable = Executable(graph, [ReferenceBackend()])
    executable.run()
    for output in graph.outputs:
        want = _evaluate(output)
        got = executable.read(output)
        np.testing.assert_array_equal(got, want.astype(np.float32))


def _evaluate(tensor: Tensor) -> NDArray[np.float32]:
    """Every node into memory of its own: Executable without any reuse."""
    memory: dict[Tensor, NDArray[np.uint8]] = {}

    def bytes_of(root: Tensor) -> NDArray[np.uint8]:
        if root in memory:
            return memory[root]
        assert root.place is not None
        return root.place.host_bytes

    for node in Graph(tensor).nodes:
        assert node.op is not None
        if not node.op.computes:
            continue
        memory[node] = aligned_bytes(node.spec.n_bytes)
        sources = []
        for source in node.src:
            sources.append(read_array(bytes_of(source.root), source.spec, source.view_offs))
        write_array(memory[node], node.spec, 0, node.op.reference(*sources))
    found: NDArray[np.float32] = read_array(bytes_of(tensor.root), tensor.spec, tensor.view_offs)
    return found


def test_the_arena_is_close_to_the_largest_live_set() -> None:
    """A chain of products: two values alive at a time, however long it is."""
    w = from_numpy(values(256, 256))
    x = from_numpy(values(4, 256))
    for _ in range(40):
        x = ops.mul_mat(w, ops.silu(x))
    layout = Executable(Graph(x), [NullBackend()]).layout
    assert layout.live_bytes[HOST] == 2 * 4 * 256 * 4
    assert layout.arena_bytes[HOST] == layout.live_bytes[HOST]
    assert layout.total_bytes[HOST] > 10 * layout.arena_bytes[HOST]


def test_in_place_saves_memory_only_where_the_op_allows_it() -> None:
    x = from_numpy(values(1024))
    scaled = Executable(Graph(ops.scale(ops.scale(ops.sqr(x), 2.0), 3.0)), [NullBackend()])
    assert scaled.layout.arena_bytes[HOST] == 4096
    normed = Executable(Graph(ops.norm(ops.norm(x, 1e-5), 1e-5)), [NullBackend()])
    assert normed.layout.arena_bytes[HOST] == 8192


def test_a_source_further_on_in_the_same_memory_is_not_overwritten() -> None:
    """With threads, one would read what another has written already."""
    root = ops.scale(from_numpy(values(1020)), 2.0)
    here, further = ops.view_1d(root, 1010, 0), ops.view_1d(root, 1010, 4)  # 4096 bytes as root
    apart = Executable(Graph(ops.add(here, further)), [NullBackend()])
    assert apart.layout.arena_bytes[HOST] == 8192
    over = Executable(Graph(ops.add(here, ops.view_1d(root, 1010, 0))), [NullBackend()])
    assert over.layout.arena_bytes[HOST] == 4096


def test_outputs_are_never_reused() -> None:
    x = ops.sqr(from_numpy(np.full(64, 3, np.float32)))
    y = ops.scale(x, 2.0)
    z = ops.neg(ops.scale(y, 5.0))
    executable = Executable(Graph(x, z, y), [ReferenceBackend()])
    executable.run()
    assert executable.read(x).flat[0] == 9
    assert executable.read(y).flat[0] == 18
    assert executable.read(z).flat[0] == -90


def test_places_are_aligned() -> None:
    outputs = [ops.scale(ops.sqr(from_numpy(np.ones(n, np.float32))), 2.0) for n in (1, 3, 17, 5)]
    executable = Executable(Graph(*outputs), [ReferenceBackend()])
    assert all(offset % ALIGNMENT == 0 for offset in executable.layout.offsets.values())


def test_executables_share_an_arena() -> None:
    pool = ArenaPool()
    x = from_numpy(values(1000))
    large = Executable(Graph(ops.sqr(x)), [ReferenceBackend()], arenas=pool)
    held = pool.n_bytes
    Executable(Graph(ops.sqr(ops.view_1d(x, 10, 0))), [ReferenceBackend()], arenas=pool)
    assert pool.n_bytes == held == large.layout.arena_bytes[HOST]
