"""Arenas: where values lie, for how long, and which may be written over which."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Places, Plan
from ggmlpy.backends.null import NullBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.buffer import ALIGNMENT, HOST, aligned_bytes
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.sched.allocator import _Block, _pack, _stack
from ggmlpy.sched.executable import ArenaPool, Executable
from ggmlpy.sched.scheduler import kept_roots
from tests.core.test_schedule import Other, by_op, values

X = np.arange(-4, 4, dtype=np.float32)


def packed(*blocks: tuple[int, int, int]) -> tuple[list[int], int, int]:
    """Offsets of blocks (bytes, first step, last step), where the furthest ends, and the peak."""
    made = [_Block(*block) for block in blocks]
    end, live = _pack(made, 1 + max(last for _, _, last in blocks))
    return [block.offset for block in made], end, live


def test_blocks_of_one_step_lie_apart_and_others_share() -> None:
    assert packed((64, 0, 1), (64, 1, 2), (64, 2, 3)) == ([0, 64, 0], 128, 128)
    assert packed((64, 0, 0), (128, 1, 1), (64, 2, 2)) == ([0, 0, 0], 128, 128)


def test_the_largest_block_goes_first_and_small_ones_fill_what_is_left() -> None:
    """In running order the first would be where the large one has to be."""
    assert packed((64, 0, 1), (64, 1, 2), (256, 2, 3)) == ([0, 256, 0], 320, 320)


def test_the_lowest_gap_that_fits_is_taken() -> None:
    blocks = (256, 0, 0), (192, 0, 2), (128, 0, 1), (64, 2, 2), (128, 2, 2)
    end, offsets = _stack([_Block(*block) for block in blocks], 3)
    assert (list(offsets.values()), end) == ([0, 256, 448, 0, 64], 576)


def test_the_better_of_two_orders_is_taken() -> None:
    """By bytes times steps, and by bytes, which take 640 and 576 bytes where they are worse."""
    assert packed((256, 1, 1), (192, 3, 4), (192, 0, 4), (192, 3, 3))[1] == 576
    assert packed((256, 3, 4), (192, 1, 1), (128, 0, 3), (192, 0, 2))[1] == 512


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=20
    )
)
@settings(deadline=None)
def test_no_two_blocks_share_a_byte_while_both_are_in_use(
    drawn: list[tuple[int, int, int]],
) -> None:
    blocks = [(64 * n, first, first + length) for n, first, length in drawn]
    offsets, end, live = packed(*blocks)
    at_once = [sum(n for n, a, b in blocks if a <= step <= b) for step in range(20)]
    assert live == max(at_once) <= end
    assert end == max(offset + n for offset, (n, _, _) in zip(offsets, blocks, strict=True))
    placed = list(zip(offsets, blocks, strict=True))
    for (p, (n, a, b)), (q, (m, c, d)) in itertools.combinations(placed, 2):
        assert b < c or d < a or p + n <= q or q + m <= p


def test_an_arena_that_is_large_enough_is_shared() -> None:
    pool = ArenaPool()
    first = pool.take(HOST, 4096)
    assert pool.take(HOST, 4096) is pool.take(HOST, 64) is first
    larger = pool.take(HOST, 4097)
    assert larger is not first
    assert pool.take(HOST, 4096) is larger


def test_a_value_lasts_until_it_was_copied() -> None:
    x = from_numpy(X)
    first, second = ops.silu(x), ops.sqr(x)  # nobody reads the first one here
    y = ops.mul(first, second)
    pin = by_op(silu="reference", sqr="reference", mul="other")
    executable = Executable(Graph(y), [ReferenceBackend(), Other()], pin)
    assert [len(split.nodes) for split in executable.schedule.splits] == [2, 1]
    executable.run()
    want = X / (1 + np.exp(-X)) * X**2
    np.testing.assert_allclose(executable.read(y)[0, 0, 0], want, rtol=1e-6)


def test_what_is_copied_again_keeps_its_place() -> None:
    base = ops.scale(from_numpy(np.ones((4, 8), np.float32)), 1.0)
    ids = from_numpy(np.array([1], np.int64))
    written = ops.set_rows(base, from_numpy(np.full((1, 8), 9, np.float32)), ids)
    outputs = ops.sum(base), written, ops.sum(written)  # there, here, and there again
    executable = Executable(
        Graph(*outputs), [ReferenceBackend(), Other()], by_op(set_rows="other", sum="reference")
    )
    copied = [copy.root for split in executable.schedule.splits for copy in split.copies]
    assert copied == [base, base]
    taken = dict.fromkeys(executable.allocation.total_bytes, 0)
    for root, name in executable.allocation.offsets:
        taken[name] += -(-root.spec.n_bytes // ALIGNMENT) * ALIGNMENT
    assert executable.allocation.total_bytes == taken


def test_a_value_that_is_marked_as_output_is_kept() -> None:
    x = ops.sqr(from_numpy(X))
    x.flags |= Flag.OUTPUT
    y = ops.scale(ops.scale(x, 2.0), 3.0)
    executable = Executable(Graph(y), [ReferenceBackend()])
    executable.run()
    np.testing.assert_array_equal(executable.read(x)[0, 0, 0], X**2)
    np.testing.assert_array_equal(executable.read(y)[0, 0, 0], 6 * X**2)


def test_a_view_that_begins_further_on_is_not_overwritten_from_the_beginning() -> None:
    """With threads, one would read what another has written already."""
    root = ops.sqr(from_numpy(np.ones(1020, np.float32)))  # padded to 4096 bytes, as what follows
    for offset, n_bytes in ((0, 4096), (4, 8192)):
        y = ops.scale(ops.view_1d(root, 1010, offset), 2.0)
        assert Executable(Graph(y), [NullBackend()]).allocation.arena_bytes == {HOST: n_bytes}


class Overlaps(NullBackend):
    """Checks, as steps run in order, that no result lies on a value still to be read."""

    name = "overlaps"

    def __init__(self, graph: Graph) -> None:
        self._kept = kept_roots(graph)

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        last_read = {x.root: i for i, step in enumerate(steps) for x in step.operands.values()}
        last_read |= dict.fromkeys(self._kept, len(steps))
        alive: set[Tensor] = set()  # values of the graph that are read from here on
        for i, step in enumerate(steps):
            operands = {x.root for x in step.operands.values() if x.root in alive}
            alive -= {root for root in operands if last_read[root] == i}
            made = [x for x in step.results.values() if x.root is x]
            assert not any(x in places for x in step.interior)
            for result, other in itertools.combinations([*made, *alive], 2):
                assert not _overlap(places, result, other), f"{result} on {other}"
            for result, operand in itertools.product(made, operands):
                assert not _overlap(places, result, operand) or _may_be_over(step, result, operand)
            alive |= {x for x in made if last_read.get(x, i) > i}
        return super().plan(steps, places)


def _may_be_over(step: Step, result: Tensor, root: Tensor) -> bool:
    """Whether the step allows it, for every operand in that memory."""
    (name,) = (name for name, x in step.results.items() if x is result)
    allowed = [step.operands[x].root for x in step.in_place.get(name, ())]
    here = [x for x in step.operands.values() if x.root is root]
    return root in allowed and all(
        x.view_offs == 0 and x.spec.same_layout(result.spec) for x in here
    )


def _overlap(places: Places, a: Tensor, b: Tensor) -> bool:
    p, q = places[a], places[b]
    if p.buffer is not q.buffer:
        return False
    return p.offset < q.offset + b.spec.n_bytes and q.offset < p.offset + a.spec.n_bytes


KINDS = ["silu", "add", "mul", "norm", "concat", "cont_t", "view", "sum"]
SEVERAL = ["weighed", "shifted", "residual", "sandwich", "biased", "gated"]  # what passes make one
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS + SEVERAL),
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
        elif kind in SEVERAL:
            made += _several(kind, a, b)
    return Graph(made[-1], made[len(made) // 2])


def _several(kind: str, a: Tensor, b: Tensor) -> list[Tensor]:
    """Nodes that passes make one where no later one reads those between."""
    n = a.ne[0]
    w = from_numpy(np.linspace(0.5, 1.5, n, dtype=np.float32))
    if kind in ("biased", "gated"):
        gate, up = (ops.mul_mat(_square(n, seed), a) for seed in (1, 2))
        return [gate, ops.add(gate, w)] if kind == "biased" else [ops.swiglu_split(gate, up), up]
    if not b.spec.can_repeat_to(a.spec):
        b = w
    weighed = ops.mul(ops.rms_norm(a, 1e-5), w)
    if kind in ("residual", "sandwich"):
        total = ops.add(a if kind == "residual" else weighed, b)
        return [total, ops.mul(ops.rms_norm(total, 1e-5), w)]
    return [weighed, ops.add(weighed, b)] if kind == "shifted" else [weighed]


def _square(n: int, seed: int) -> Tensor:
    """A weight, small enough that values stay finite."""
    weight = np.random.default_rng(seed).standard_normal((n, n), dtype=np.float32) / n
    return from_bytes(weight.tobytes(), "f32", (n, n))


@given(STEPS, st.sampled_from(["all", "none"]))
@settings(deadline=None)
def test_nothing_is_overwritten_while_it_is_needed(
    steps: list[tuple[str, int, int]], passes: str
) -> None:
    graph = random_graph(steps)
    Executable(graph, [Overlaps(graph)], passes=passes)


@given(STEPS)
@settings(deadline=None)
def test_neither_passes_nor_reuse_of_memory_change_a_value(
    steps: list[tuple[str, int, int]],
) -> None:
    graph = random_graph(steps)
    executable = Executable(graph, [ReferenceBackend()], passes="all")
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
    allocation = Executable(Graph(x), [NullBackend()]).allocation
    assert allocation.live_bytes[HOST] == 2 * 4 * 256 * 4
    assert allocation.arena_bytes[HOST] == allocation.live_bytes[HOST]
    assert allocation.total_bytes[HOST] > 10 * allocation.arena_bytes[HOST]


def test_in_place_saves_memory_only_where_the_op_allows_it() -> None:
    x = from_numpy(values(1024))
    scaled = Executable(Graph(ops.scale(ops.scale(ops.sqr(x), 2.0), 3.0)), [NullBackend()])
    assert scaled.allocation.arena_bytes[HOST] == 4096
    normed = Executable(Graph(ops.norm(ops.norm(x, 1e-5), 1e-5)), [NullBackend()])
    assert normed.allocation.arena_bytes[HOST] == 8192


def test_a_source_further_on_in_the_same_memory_is_not_overwritten() -> None:
    """With threads, one would read what another has written already."""
    root = ops.scale(from_numpy(values(1020)), 2.0)
    here, further = ops.view_1d(root, 1010, 0), ops.view_1d(root, 1010, 4)  # 4096 bytes as root
    apart = Executable(Graph(ops.add(here, further)), [NullBackend()])
    assert apart.allocation.arena_bytes[HOST] == 8192
    over = Executable(Graph(ops.add(here, ops.view_1d(root, 1010, 0))), [NullBackend()])
    assert over.allocation.arena_bytes[HOST] == 4096


def test_elements_in_another_order_are_not_overwritten() -> None:
    root = ops.scale(from_numpy(values(32, 32)), 2.0)
    for y in (ops.scale(ops.transpose(root), 2.0), ops.add(root, ops.transpose(root))):
        assert Executable(Graph(y), [NullBackend()]).allocation.arena_bytes[HOST] == 8192


def test_a_small_result_does_not_keep_a_large_one_in_use() -> None:
    small = ops.scale(ops.view_1d(ops.scale(from_numpy(values(1024)), 2.0), 16, 0), 3.0)
    large = ops.scale(ops.repeat_4d(small, 1024, 1, 1, 1), 2.0)
    allocation = Executable(Graph(large, small), [NullBackend()]).allocation
    assert allocation.arena_bytes[HOST] == 4096 + 64


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
    assert all(offset % ALIGNMENT == 0 for offset in executable.allocation.offsets.values())


def test_executables_share_an_arena() -> None:
    pool = ArenaPool()
    x = from_numpy(values(1000))
    large = Executable(Graph(ops.sqr(x)), [ReferenceBackend()], arenas=pool)
    held = pool.n_bytes
    Executable(Graph(ops.sqr(ops.view_1d(x, 10, 0))), [ReferenceBackend()], arenas=pool)
    assert pool.n_bytes == held == large.allocation.arena_bytes[HOST]
