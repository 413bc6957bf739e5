"""Where a node may write: not into weights, not into read-only memory, not into what it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import Flag, Tensor, WriteError, compute, from_bytes, from_numpy, ops, zeros
from ggmlpy.backends.base import Backend
from ggmlpy.backends.null import NullBackend
from ggmlpy.graph.graph import Graph
from ggmlpy.sched.executable import Executable
from ggmlpy.sched.writes import check_writes, share_memory

BACKENDS = ("cpu", "reference", "null")


def floats(*shape: int) -> Tensor:
    return from_numpy(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def ids(*values: int) -> Tensor:
    return from_numpy(np.array(values, np.int64))


def read_only_array() -> Tensor:
    array = np.zeros((3, 4), np.float32)
    array.flags.writeable = False
    return from_numpy(array)


def memmap(path: Path) -> Tensor:
    (path / "rows").write_bytes(bytes(48))
    return from_numpy(np.memmap(path / "rows", np.float32, "r", shape=(3, 4)))


FIXED: dict[str, Callable[[Path], Tensor]] = {
    "bytes": lambda _: from_bytes(bytes(48), "f32", (4, 3)),
    "bytes that are state": lambda _: from_bytes(bytes(48), "f32", (4, 3), flags=Flag.STATE),
    "a weight": lambda _: from_bytes(bytearray(48), "f32", (4, 3)),
    "memoryview": lambda _: from_bytes(memoryview(bytes(48)), "f32", (4, 3), flags=Flag.NONE),
    "array": lambda _: read_only_array(),
    "memmap": memmap,
}
WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "cpy": lambda q: ops.cpy(floats(3, 4), q),
    "cpy to a view": lambda q: ops.cpy(floats(4), ops.view_1d(q, 4, 16)),
    "cpy to a view of a view": lambda q: ops.cpy(
        floats(2), ops.transpose(ops.reshape_2d(ops.view_1d(q, 2, 16), 1, 2))
    ),
    "set_rows": lambda q: ops.set_rows(q, floats(1, 4), ids(2)),
    "set_rows of what a write gives": lambda q: ops.set_rows(
        ops.reshape_2d(ops.cpy(floats(3, 4), ops.reshape_1d(q, 12)), 4, 3), floats(1, 4), ids(2)
    ),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", FIXED)
def test_memory_that_may_not_change(target: str, write: str, tmp_path: Path) -> None:
    q = FIXED[target](tmp_path).named("q")
    before = q.tobytes()
    node = ops.scale(WRITES[write](q).named("kept"), 2.0)
    for backend in BACKENDS:
        with pytest.raises(
            WriteError, match=r"\((cpy|set_rows)\): dst lies in q, (a weight|read-only)"
        ):
            compute(node, backend=backend)
    assert q.tobytes() == before


@pytest.mark.parametrize("write", WRITES)
def test_memory_that_may_change(write: str) -> None:
    targets = [
        zeros("f32", (4, 3)),
        from_numpy(np.zeros((3, 4), np.float32)),
        from_bytes(bytearray(48), "f32", (4, 3), flags=Flag.STATE),
        from_bytes(np.zeros(48, np.uint8), "f32", (4, 3), flags=Flag.NONE),
    ]
    for q in targets:
        compute(WRITES[write](q), backend="reference")
        assert q.numpy().any()


def test_the_message() -> None:
    q = from_bytes(bytes(16), "f32", (4,), name="blk.0.bias")
    with pytest.raises(WriteError) as caught:
        compute(ops.cpy(floats(4), q).named("blk.0.copied"))
    assert str(caught.value) == (
        "blk.0.copied (cpy): dst lies in blk.0.bias, a weight: it must lie in a leaf that may"
        " change, as of ggmlpy.zeros or ggmlpy.from_numpy of a writable array"
    )


def test_a_backend_of_others_never_sees_the_node() -> None:
    class Theirs(NullBackend):
        name = "theirs"

    backend: Backend = Theirs()
    q = floats(3, 4)
    with pytest.raises(WriteError, match=r"^node_1 \(cpy\): dst and x share memory"):
        Executable(Graph(ops.cpy(ops.transpose(q), q)), [backend])


# --- source and destination ---

BUFFER = np.zeros(64, np.float32)


def part(start: int, stop: int) -> Tensor:
    return from_numpy(BUFFER[start:stop])


def view(q: Tensor, *ne: int, nb: tuple[int, ...], at: int) -> Tensor:
    """A window of `q`, strides and offset in elements."""
    nb = (*nb, *(nb[-1:] * 3))[:3]
    counts = (*ne, 1, 1, 1)[:4]
    return ops.view_4d(q, *counts, *(4 * n for n in nb), 4 * at)  # type: ignore[call-arg]


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "set_rows of itself": lambda q: ops.set_rows(q, q, ids(*range(8))),
    "set_rows of its rows": lambda q: ops.set_rows(q, view(q, 8, 2, nb=(8,), at=48), ids(0, 1)),
    "cpy, shifted": lambda q: ops.cpy(view(q, 20, nb=(1,), at=0), view(q, 20, nb=(1,), at=1)),
    "cpy, transposed": lambda q: ops.cpy(ops.transpose(q), q),
    "cpy, backwards": lambda q: ops.cpy(ops.permute(view(q, 8, 4, 2, nb=(8, 32), at=0), 0, 2, 1, 3),
                                        view(q, 8, 2, 4, nb=(8, 16), at=0)),
    "cpy of columns that cross": lambda q: ops.cpy(
        view(q, 2, 8, nb=(8,), at=1), view(q, 2, 8, nb=(8,), at=2)
    ),
    "cpy of another leaf over the memory": lambda _: ops.cpy(part(0, 20), part(10, 30)),
    "cpy to another type": lambda _: ops.cpy(
        from_bytes(BUFFER.view(np.uint8)[:32], "f32", (8,), flags=Flag.NONE),
        from_bytes(BUFFER.view(np.uint8)[:16], "f16", (8,), flags=Flag.NONE),
    ),
    "ids": lambda _: ops.set_rows(
        ops.reshape_2d(part(0, 8), 1, 8), floats(1), from_numpy(BUFFER.view(np.int64)[2:3])),
    "elements that share": lambda q: ops.cpy(floats(12), view(q, 4, 3, nb=(2,), at=0)),
    "rows that share": lambda q: ops.set_rows(
        view(q, 4, 3, nb=(0,), at=0), floats(2, 4), ids(0, 1)),
    "more elements than bytes": lambda q: ops.set_rows(
        view(q, 1, 3, 4, 4, nb=(4, 1, 1), at=0), floats(4, 4, 1, 1), ids(0)),
}  # fmt: skip
ALLOWED: dict[str, Callable[[Tensor], Tensor]] = {
    "onto itself": lambda q: ops.cpy(q, q),
    "onto itself, counted differently": lambda q: ops.cpy(ops.reshape_1d(q, 64), q),
    "onto itself, transposed": lambda q: ops.cpy(ops.transpose(q), ops.transpose(q)),
    "another leaf of the same array": lambda _: ops.cpy(part(8, 16), part(8, 16)),
    "halves": lambda q: ops.cpy(view(q, 8, 4, nb=(8,), at=0), view(q, 8, 4, nb=(8,), at=32)),
    "columns": lambda q: ops.cpy(view(q, 1, 8, nb=(8,), at=3), view(q, 1, 8, nb=(8,), at=4)),
    "heads": lambda q: ops.cpy(view(q, 4, 8, nb=(8,), at=0), view(q, 4, 8, nb=(8,), at=4)),
    "even to odd": lambda q: ops.cpy(view(q, 1, 32, nb=(2,), at=0), view(q, 1, 32, nb=(2,), at=1)),
    "rows of a half": lambda q: ops.set_rows(
        view(q, 8, 4, nb=(8,), at=0), view(q, 8, 2, nb=(8,), at=48), ids(3, 1)),
    "rows of the other heads": lambda q: ops.set_rows(
        view(q, 4, 8, nb=(8,), at=4), view(q, 4, 2, nb=(8,), at=0), ids(7, 0)),
    "what the graph computed of it": lambda q: ops.set_rows(q, ops.sqr(q), ids(*range(8))),
    "a value onto a value": lambda q: ops.cpy(ops.sqr(q), ops.sqrt(q)),
    "part of a value onto another": lambda q: (
        lambda y: ops.cpy(view(y, 8, nb=(1,), at=0), view(y, 8, nb=(1,), at=8)))(ops.sqr(q)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_shares_memory(case: str) -> None:
    node = REFUSED[case](floats(8, 8)).named("it")
    share = "dst and (x|ids) share memory: they must lie apart"
    for backend in BACKENDS:
        with pytest.raises(
            WriteError, match=rf"^it \(\w+\): ({share}|dst has elements that share)"
        ):
            compute(node, backend=backend)


@pytest.mark.parametrize("case", ALLOWED)
def test_a_source_that_lies_apart(case: str) -> None:
    """The values that numpy gives, which copies what it reads first."""
    results = []
    for backend in ("cpu", "reference"):
        BUFFER[:] = np.arange(64)
        q = floats(8, 8)
        compute(ALLOWED[case](q), backend=backend)
        results.append((q.tobytes(), BUFFER.tobytes()))
    assert results[0] == results[1]
    if "itself" in case or "same" in case:
        np.testing.assert_array_equal(q.numpy().reshape(-1), np.arange(64))
        np.testing.assert_array_equal(BUFFER, np.arange(64))


def test_values_of_the_graph_overlap_too() -> None:
    y = ops.sqr(floats(64))
    write = ops.cpy(view(y, 20, nb=(1,), at=0), view(y, 20, nb=(1,), at=19))
    with pytest.raises(WriteError, match="dst and x share memory"):
        compute(write, backend="reference")


# --- exactly ---

ROOT = zeros("f32", (160,))
SIZES = st.tuples(*[st.integers(1, 4)] * 4)
STRIDES = st.tuples(*[st.integers(0, 14)] * 3)
WINDOWS = st.tuples(SIZES, STRIDES, st.integers(0, 20), st.permutations(range(4)))


def window(drawn: tuple[tuple[int, ...], tuple[int, ...], int, list[int]]) -> Tensor:
    ne, nb, at, order = drawn
    made = ops.view_4d(ROOT, *ne, *(4 * n for n in nb), 4 * at)  # type: ignore[call-arg]
    return ops.permute(made, *order)


def elements(tensor: Tensor) -> list[int]:
    """The place of each element, one by one."""
    steps = np.array(np.unravel_index(range(tensor.spec.n_elements), tensor.ne)).T
    return [tensor.view_offs + int(i @ np.array(tensor.nb)) for i in steps]


@given(WINDOWS, WINDOWS)
def test_shared_bytes_are_found_exactly(a: object, b: object) -> None:
    x, y = window(a), window(b)  # type: ignore[arg-type]
    in_x, in_y = elements(x), elements(y)
    assert share_memory(x, y) == bool(set(in_x) & set(in_y))
    try:
        check_writes(Graph(ops.cpy(zeros("f32", y.ne), y)))
        refused = False
    except WriteError:
        refused = True
    assert refused == (len(set(in_y)) < len(in_y))


def test_layouts_too_large_to_count_through() -> None:
    """2^59 elements in a megabyte, and the heads of a cache of 4 streams."""
    q = zeros("f32", (1 << 18,))
    tangled = view(q, *[1 << 15] * 3, 1 << 14, nb=(1,), at=0)
    assert share_memory(tangled, tangled)
    cache = from_bytes(np.zeros(2 * 1024 * 4096 * 4, np.uint8), "f16", (1024, 4096, 4))
    heads = [ops.view_4d(cache, 64, 4096, 8, 4, 2048, 256, cache.nb[2], at) for at in (0, 128)]
    assert not share_memory(*heads)
    assert share_memory(heads[0], cache)
