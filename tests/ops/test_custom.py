"""Ops that call functions of the caller, and what becomes of their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.errors import CallbackError
from ggmlpy.graph.graph import Graph
from ggmlpy.sched.executable import Executable
from tests.ops.values import leaf, run, uniform

Array = np.ndarray[Any, Any]


def test_a_function_of_one_two_and_three_tensors() -> None:
    a, b, c = (uniform(seed, 4, 3, 2) for seed in (1, 2, 3))
    seen: list[object] = []

    def total(dst: Array, *rest: Any) -> None:
        *sources, ith, nth, userdata = rest
        seen.append((ith, nth, userdata))
        dst[:, ith::nth] = sum(source[:, ith::nth] for source in sources)

    assert (run(ops.map_custom1(leaf(a), total, 1, "x")) == a).all()
    assert (run(ops.map_custom2(leaf(a), leaf(b), total, 2, None)) == a + b).all()
    np.testing.assert_array_equal(
        run(ops.map_custom3(leaf(a), leaf(b), leaf(c), total, -1, 7)), a + b + c
    )
    assert seen == [(0, 1, "x"), (0, 2, None), (1, 2, None), (0, 1, 7)]


def test_any_shape_type_and_sources() -> None:
    a, b = uniform(4, 4, 3), uniform(5, 2)

    def shapes(dst: Array, *rest: Any) -> None:
        *sources, _, _, _ = rest
        for i, source in enumerate(sources):
            dst[..., i] = source.size

    y = ops.custom_4d("i32", 3, 2, 1, 1, [leaf(a), leaf(b)], shapes, 1, None)
    assert (y.ne, y.type.name) == ((3, 2, 1, 1), "i32")
    assert run(y)[0, 0].tolist() == [[12, 2, 0], [12, 2, 0]]  # what none writes is 0


@pytest.mark.parametrize("backend", ["reference", "cpu", "mock"])
def test_between_nodes_of_any_backend(backend: str) -> None:
    x = uniform(6, 5, 3)

    def square(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
        dst[...] = a * a

    y = ops.neg(ops.map_custom1(ops.scale(leaf(x), 2.0), square, 1, None))
    np.testing.assert_array_equal(ggmlpy.compute(y, backend=backend), -((2 * x[0, 0]) ** 2))


def fails(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
    raise KeyError("nothing here")


def writes(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
    a[...] = 0


@pytest.mark.parametrize("backend", ["reference", "cpu", "mock"])
def test_an_error_names_node_and_function(backend: str) -> None:
    y = ops.map_custom1(leaf(uniform(7, 4)), fails, 1, None).named("mine")
    with pytest.raises(CallbackError, match=r"^mine: fails: KeyError: 'nothing here'$") as caught:
        ggmlpy.compute(ops.neg(y), backend=backend)
    if backend != "mock":  # its queue keeps the error, not its cause
        assert isinstance(caught.value.__cause__, KeyError)


def test_sources_may_only_be_read() -> None:
    with pytest.raises(CallbackError, match=r"read-only"):
        run(ops.map_custom1(leaf(uniform(8, 4)), writes, 1, None))


def test_what_is_returned_is_nothing_or_dst() -> None:
    x = uniform(11, 4)
    y = ops.map_custom1(leaf(x), lambda dst, a, *_: np.multiply(a, 2, out=dst), 1, None)
    np.testing.assert_array_equal(run(y), 2 * x)
    forgets = ops.map_custom1(leaf(x), lambda dst, a, *_: 2 * a, 1, None).named("mine")
    with pytest.raises(CallbackError, match=r"mine: .*: it returned a numpy array .*: it must wri"):
        run(forgets)


def test_ops_are_equal_if_function_and_userdata_are_the_same() -> None:
    x, state = leaf(uniform(12, 4)), np.zeros(3)  # which has no hash, and no truth when compared

    def made(fun: Any, userdata: object) -> object:
        return ops.map_custom1(x, fun, 1, userdata).op

    assert made(fails, state) == made(fails, state)
    assert hash(made(fails, state)) == hash(made(fails, state))
    ops_ = [made(fails, state), made(writes, state), made(fails, state.copy()), made(fails, None)]
    assert len(set(ops_)) == 4
    a, b = lambda dst, *_: None, lambda dst, *_: None
    assert made(a, None) != made(b, None)


def test_a_run_after_an_error_is_right() -> None:
    bad = True

    def at_times(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
        if bad:
            raise ValueError("not yet")
        dst[...] = a

    x = leaf(uniform(9, 4))
    y = ops.map_custom1(x, at_times, 1, None)
    executable = Executable(Graph(y), [MockBackend()])
    with pytest.raises(CallbackError, match=r"not yet"):
        executable.run()
    bad = False
    executable.run()
    np.testing.assert_array_equal(executable.read(y), x.numpy().reshape(1, 1, 1, 4))


def test_what_is_no_function_or_no_tensor_is_refused() -> None:
    x = leaf(uniform(10, 4))
    with pytest.raises(
        ggmlpy.ArgumentError, match=r"map_custom1: fun is an int: it must be a func"
    ):
        ops.map_custom1(x, 3, 1, None)  # type: ignore[arg-type]
    with pytest.raises(ggmlpy.ArgumentError, match=r"args\[1\] is a str: it must be a tensor"):
        ops.custom_4d("f32", 4, 1, 1, 1, [x, "x"], fails, 1, None)  # type: ignore[list-item]
