"""Arenas: which free range is taken, and how long a value keeps its place."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.null import NullBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.graph.buffer import ALIGNMENT, HOST
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, from_numpy
from ggmlpy.sched.allocator import _Arena
from ggmlpy.sched.executable import ArenaPool, Executable
from tests.core.test_schedule import Other, by_op

X = np.arange(-4, 4, dtype=np.float32)


def test_the_smallest_range_that_fits_is_taken() -> None:
    arena = _Arena()
    assert [arena.take(n) for n in (256, 64, 128, 64)] == [0, 256, 320, 448]
    arena.give_back(0, 256)
    arena.give_back(320, 128)
    assert [arena.take(n) for n in (128, 64, 192)] == [320, 0, 64]
    assert arena.end == 512


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_neighbouring_free_ranges_are_one(order: tuple[int, ...]) -> None:
    arena = _Arena()
    places = [arena.take(64) for _ in range(4)]
    for i in order:
        arena.give_back(places[i], 64)
    assert arena.take(192) == 0


def test_a_free_range_at_the_end_grows() -> None:
    arena = _Arena()
    assert [arena.take(64), arena.take(64)] == [0, 64]
    arena.give_back(64, 64)
    assert arena.take(128) == 64
    assert arena.end == 192


def test_figures() -> None:
    arena = _Arena()
    arena.take(64)
    arena.give_back(arena.take(192), 192)
    arena.take(64)
    assert (arena.live, arena.peak_live, arena.total, arena.end) == (128, 256, 320, 256)


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
    taken = dict.fromkeys(executable.layout.total_bytes, 0)
    for root, name in executable.layout.offsets:
        taken[name] += -(-root.spec.n_bytes // ALIGNMENT) * ALIGNMENT
    assert executable.layout.total_bytes == taken


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
        assert Executable(Graph(y), [NullBackend()]).layout.arena_bytes == {HOST: n_bytes}
