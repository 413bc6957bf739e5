"""Counts that a run sets: their arithmetic, what shapes and dumps make of them, what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import ops
from ggmlpy.backends.base import Plan
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.counts import CountWriter
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import ArgumentError, ShapeError, Unsupported
from ggmlpy.graph.count import Count, Symbol, same_counts
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, zeros
from ggmlpy.graph.types import F32
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import Executable
from tests.counted import GRAPHS, check_bits
from tests.interrupts import interrupted_at

T, O, S = Symbol("T", 7), Symbol("O", 7), Symbol("S", 2)  # noqa: E741
COUNTS = {T: 3, O: 2, S: 1}


def f32(*ne: int) -> Tensor:
    return zeros("f32", ne)


# --- arithmetic ---------------------------------------------------------------------------------

Number = tuple[int, Callable[[dict[Symbol, int]], int]]  # with counts, and its value in a run


def _symbol(symbol: Symbol) -> Number:
    return symbol.count, lambda values: values[symbol]


def _whole(n: int) -> Number:
    return n, lambda values: n


def _apply(op: str, a: Number, b: Number) -> Number:
    functions: dict[str, Callable[[int, int], int]] = {
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
        "//": lambda x, y: x // y if y else x,
    }
    f = functions[op]
    made = f(a[0], b[0])
    if not isinstance(made, Count):
        return _whole(made)
    return made, lambda values: f(a[1](values), b[1](values))


numbers = st.recursive(
    st.sampled_from([_symbol(s) for s in (T, O, S)]) | st.integers(-4, 9).map(_whole),
    lambda inner: st.builds(_apply, st.sampled_from(["+", "-", "*", "//"]), inner, inner),
    max_leaves=8,
)


@given(numbers, st.integers(1, 7), st.integers(1, 7), st.integers(1, 2))
def test_a_count_is_the_int_of_its_bound_and_has_the_value_of_its_form(
    number: Number, t: int, o: int, s: int
) -> None:
    made, value = number
    assert int(made) == value({x: x.bound for x in (T, O, S)})
    assert isinstance(made, Count) or type(made) is int
    if isinstance(made, Count):
        counts = {T: t, O: o, S: s}
        assert made.at(counts) == value(counts) <= made
        assert made.least == value({T: 1, O: 1, S: 1})
        assert eval(str(made), {x.name: counts[x] for x in counts}) == value(counts)
        assert copy.deepcopy(made).same(made)
        assert pickle.loads(pickle.dumps(made)).same(made)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_what_keeps_the_form(k: int, constant: int, divisor: int) -> None:
    form = constant + k * T.count + S.count * 3
    assert isinstance(form, Count)
    assert dict(form.terms) == {T: k, S: 3}
    assert form.constant == constant
    assert form.same((form * divisor) // divisor)
    assert (form - T.count * k - 3 * S.count) == constant
    assert type(form - form) is int
    assert sum([T.count, 1, T.count]) == 15
    assert (sum([T.count, 1, T.count]) + 0).same(2 * T.count + 1)  # type: ignore[attr-defined]


def test_what_does_not() -> None:
    n = T.count
    for made in (n // 2, n * n, -n, 7 - n, n % 2, n | 1, n * 0, n * -1, 2 * n - 3 * n, int(n), +n):
        assert type(made) is int
    assert n * 1.5 == 10.5
    assert n / 2 == 3.5


def test_equality_and_hash_are_those_of_the_bound() -> None:
    assert T.count == O.count == 7
    assert hash(T.count) == hash(7)
    assert not T.count.same(O.count)
    assert same_counts((4, T.count), (4, T.count))
    assert not same_counts((4, T.count), (4, 7))
    assert not same_counts((4, 7), (4, T.count))
    assert Symbol("T", 7) == T != Symbol("T", 8)


@pytest.mark.parametrize("bad", [("2x", 3), ("T", 0), ("T", 2.0), ("", 1)])
def test_a_symbol_has_a_name_and_a_bound(bad: tuple[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="must be an"):
        Symbol(*bad)


# --- shapes and dumps ---------------------------------------------------------------------------


def test_strides_are_those_of_bounds() -> None:
    spec = Spec((4, T.count, 3), F32)
    assert spec.nb == (4, 16, 112, 336)
    assert all(type(n) is int for n in spec.nb)
    assert spec.at(COUNTS).ne == (4, 3, 3, 1)
    assert spec.at(COUNTS).nb == spec.nb
    assert all(type(n) is int for n in spec.at(COUNTS).ne)
    assert Spec((4, 3), F32).at(COUNTS) == Spec((4, 3), F32)


def test_rows_after_a_count_leave_gaps() -> None:
    assert Spec((4, 3, T.count), F32).contiguous
    assert Spec((T.count,), F32).contiguous
    assert not Spec((4, T.count, 3), F32).contiguous
    assert Spec((4, Symbol("one", 1).count, 3), F32).contiguous
    with pytest.raises(ShapeError, match=r"x is f32 \[4, T, 3\]: x must be contiguous"):
        ops.reshape_2d(f32(4, T.count, 3), 4, 3 * T.count)


def test_a_shape_has_a_count_of_at_least_one() -> None:
    with pytest.raises(ShapeError, match=r"ne is \[4, T - 1\]"):
        f32(4, T.count - 1)
    assert f32(4, T.count + S.count - 1).ne[1].at(COUNTS) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: ops.view_2d(x, 4, 1, 16, (T.count - 1) * 16),
        lambda x: ops.view_2d(x, 4, 1, 16 * T.count, 0),
        lambda x: ops.view_1d(x, 4, 16 * S.count),
    ],
)
def test_memory_lies_by_bounds(view: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ArgumentError, match="whole number that does not depend on"):
        view(f32(4, T.count))


def test_weights_have_fixed_counts() -> None:
    assert type(from_bytes(bytes(112), "f32", (4, T.count)).ne[1]) is int
    y = ops.sqr(zeros("f32", (4, T.count), name="w", flags=Flag.WEIGHT))
    with pytest.raises(ShapeError, match="counts of weights are fixed"):
        Executable(Graph(y), [ReferenceBackend()])


def test_dumps_show_forms() -> None:
    x = zeros("f32", (4, 3, T.count), name="x")
    ids = zeros("i32", (2 * S.count,), name="ids")
    rows = ops.reshape_2d(x, 4, 3 * T.count).named("rows")
    graph = Graph(ops.get_rows(rows, ids).named("y"))
    lines = str(graph).splitlines()
    assert lines[0] == "graph: 2 nodes, 2 leafs, T <= 7, S <= 2"
    assert "f32 [4, 3, T]" in lines[1]
    assert "f32 [4, 3*T] = reshape(ne=(4, 3*T, 1, 1))" in lines[3]
    assert "f32 [4, 2*S] = get_rows" in lines[4]
    assert "[4, 3*T]" in graph.to_dot()
    assert "<td>[4, 3*T]" in graph.to_html()
    made = json.loads(graph.to_json())
    assert made["symbols"] == {"T": 7, "S": 2}
    assert [n["shape"] for n in made["nodes"]] == ["[4, 3*T]", "[4, 2*S]"]
    assert made["nodes"][0]["ne"] == [4, 21, 1, 1]
    assert "symbols" not in json.loads(Graph(f32(4)).to_json())


def test_symbols_of_a_graph_have_a_name_each() -> None:
    with pytest.raises(ArgumentError, match="T <= 7, T <= 8: each must have a name of its own"):
        str(Graph(f32(4, T.count), f32(4, Symbol("T", 8).count)))


# --- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.add(f32(4, T.count), f32(4, O.count)), "with T = 6, O = 7 "),
        (lambda: ops.add(f32(4, T.count), f32(4, 7)), "with T = 1 "),
        (lambda: ops.add(f32(4, 7), f32(4, T.count)), "with T = 6 "),
        (lambda: ops.reshape_2d(f32(2, 2, T.count), 4, 7), "with T = 1 "),
        (lambda: ops.view_2d(f32(4, T.count), 4, 2, 16, 0), "with T = 1 the view ends"),
        (lambda: ops.get_rows(f32(4, 2, T.count), zeros("i32", (1, O.count))), "a list for"),
        (lambda: ops.repeat(f32(4, O.count), f32(4, T.count)), "with O = 6, T = 7 "),
        (lambda: _sums((O, O), (O, T)), "with O = 6, T = 7 "),
        (lambda: ops.top_k(f32(T.count, 2), 2), "with T = 1 k is 2"),
        (lambda: ops.rope(f32(4, 1, T.count), zeros("i32", (7,)), 4, 0), "with T = 1 pos must"),
    ],
)
def test_shapes_fit_with_all_values(build: Callable[[], Tensor], message: str) -> None:
    y = build()
    y = y if y.op is not None and y.op.computes else ops.sqr(y)
    with pytest.raises(ShapeError, match=message):
        Executable(Graph(y), [ReferenceBackend()])


def _sums(*pairs: tuple[Symbol, Symbol]) -> Tensor:
    """Sums that differ in the forms of their counts alone."""
    y = f32(1, 1)
    for a, b in pairs:
        total = ops.add(f32(4, a.count), f32(4, b.count))
        y = ops.add(y, ops.reshape_2d(ops.sum(total), 1, 1))
    return y


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_counts_are_set_before_runs(backend: str) -> None:
    x, y = _doubled()
    executable = Executable(Graph(y), backends_for(backend, 1))
    assert executable.symbols == (T,)
    for n in (None, 3, 1, 7, 3):
        if n is not None:
            executable.set_counts({T: n})
        x.array()[:] = np.arange(28)
        executable.run()
        expected = 2 * np.arange(28, dtype=np.float32)[: 4 * (n or 7)].reshape(1, 1, -1, 4)
        assert np.array_equal(executable.read(y), expected)
        assert executable.array(y).shape == expected.shape
        assert executable.raw(y).tobytes() == expected.tobytes()


def _doubled() -> tuple[Tensor, Tensor]:
    x = f32(4, T.count)
    return x, ops.scale(x, 2.0)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({T: 0}, "T is 0: it must be from 1 to 7"),
        ({T: 8}, "T is 8: it must be from 1 to 7"),
        ({T: 3.0}, "T is a float: it must be a whole number"),
        ({T: True}, "T is a bool: it must be a whole number"),
        ({}, "there are values for none: they must be for T"),
        ({T: 1, S: 1}, "there are values for T, S: they must be for T"),
        ({Symbol("T", 8): 1}, "there are values for T: they must be for T"),
    ],
)
def test_values_are_checked(counts: dict[Symbol, Any], message: str) -> None:
    _, y = _doubled()
    executable = Executable(Graph(y), [ReferenceBackend()])
    executable.set_counts({T: 2})
    with pytest.raises(ArgumentError, match=f"set_counts: {message}"):
        executable.set_counts(counts)
    executable.run()
    assert executable.read(y).shape == (1, 1, 2, 4)


def test_a_backend_says_that_it_takes_no_counts() -> None:
    class Bare(Plan):
        def submit(self) -> None: ...

    with pytest.raises(Unsupported, match="its plans take no counts"):
        Bare().set_counts({T: 1})


def test_counts_after_an_interrupt_of_setting_others_are_those_set_last() -> None:
    """Also where one of two plans had new counts, or some records of one."""
    x = f32(4, T.count)
    y = ops.scale(ops.neg(ops.scale(x, 3.0)), 2.0)
    backends = backends_for("cpu", 1)
    executable = Executable(
        Graph(y), backends, lambda node: "reference" if str(node.op).startswith("neg") else "cpu"
    )
    assert len(executable.schedule.splits) == 3
    x.array()[:] = np.arange(28)
    owners = (Executable, CountWriter, CpuBackend, ReferenceBackend)
    for after in (5, 3, 7):
        for n in range(1, 200):
            executable.set_counts({T: 5})
            try:
                with interrupted_at(n, owners):
                    executable.set_counts({T: 2})
            except KeyboardInterrupt:
                executable.set_counts({T: after})
                executable.run()
                expected = -6 * np.arange(4 * after).reshape(1, 1, after, 4)
                assert np.array_equal(executable.read(y), expected), n
            else:
                break
        assert n > 15


@pytest.mark.parametrize("name", GRAPHS)
def test_the_reference_computes_with_counts(name: str) -> None:
    check_bits(name, ReferenceBackend(), "all", "q4_0", 5, [3, 1, 5])
