"""Arguments of another kind than must be there: an ArgumentError that names op, argument, kind."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError, GgmlpyError, Graph, compute, ops, scope
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.common.arguments import WrongKind, as_int
from ggmlpy.errors import CallbackError
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.sched.executable import Executable

KINDS = {
    "a float": 1.5,
    "an int": 3,
    "a list": [1.0],
    "a str": "x",
    "a numpy array (float64, shape (3,))": np.ones(3),
}
# Scalars that get past checks which come before those of the tensors.
SCALARS = {
    "axis0": 0,
    "axis2": 2,
    "axis3": 3,
    "mode": 0,
    "sections": (1, 1, 1, 1),
    "op": 0,
    "ne": (4, 4),
    "fun": lambda dst, *rest: None,
    "args": (),
}


def tensor_arguments() -> Iterator[tuple[str, str]]:
    """Every argument of every op that takes a tensor: op, argument."""
    for name in ops.__all__:
        for parameter in inspect.signature(getattr(ops, name)).parameters.values():
            if parameter.annotation.split(" | ")[0] == "Tensor":
                yield name, parameter.name


def given(name: str, argument: str, value: object) -> list[Any]:
    """Positional arguments of the op: `value`, tensors where they must be, and some scalars."""
    values: list[Any] = []
    for parameter in inspect.signature(getattr(ops, name)).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            continue
        if parameter.name == argument:
            values.append(value)
        elif parameter.annotation.startswith("Tensor"):
            values.append(scores(name) if parameter.name == "a" else tensor())
        elif "str" in parameter.annotation and parameter.name == "type":
            values.append("f32")
        elif parameter.default is inspect.Parameter.empty:
            values.append(SCALARS.get(parameter.name, 1))
    return values


def called(name: str, argument: str, value: object) -> Tensor:
    """The op's node with `value` for one of its arguments."""
    parameter = inspect.signature(getattr(ops, name)).parameters[argument]
    named = {argument: value} if parameter.kind is inspect.Parameter.KEYWORD_ONLY else {}
    node: Tensor = getattr(ops, name)(*given(name, argument, value), **named)
    return node


def tensor() -> Tensor:
    return from_numpy(np.ones((32, 32), np.float32))


def scores(name: str) -> Tensor:
    """The first argument: for those that give a node its sinks, such a node."""
    x = tensor()
    if name == "soft_max_add_sinks":
        return ops.soft_max(x)
    if name == "flash_attn_ext_add_sinks":
        return ops.flash_attn_ext(x, x, x, None, 1.0, 0.0, 0.0)
    return x


@pytest.mark.parametrize(("name", "argument"), list(tensor_arguments()))
def test_each_argument_of_each_op(name: str, argument: str) -> None:
    for kind, value in KINDS.items():
        with pytest.raises(ArgumentError) as caught, scope("blk.3"):
            called(name, argument, value)
        message = str(caught.value)
        assert message.startswith("blk.3.")
        assert f" is {kind}: it must be a tensor" in message


NUMBERS: dict[str, object] = {
    "a list": [1],
    "a str": "1",
    "a bytes": b"1",
    "an object": object(),
    "a bool": True,
    "a complex": 1j,
    "a numpy array (int64, shape ())": np.array(1),
    "a Tensor": from_numpy(np.ones((32, 32), np.float32)),
    "None": None,
}
NO_INT = NUMBERS | {
    "a float": 1.0,
    "a float64": np.float64(1),
    "a whole number of 72 bits": -(2**70),
    "a whole number of 65 bits": 2**63,
}
NO_FLOAT = NUMBERS | {"a whole number of 1330 bits": 10**400, "a float": 1e39}


def test_a_number_that_is_too_large_is_told_the_largest() -> None:
    with pytest.raises(WrongKind, match=f"^a whole number from {-(2**63)} to {2**63 - 1}$"):
        as_int(2**63)


def number_arguments() -> Iterator[tuple[str, str, str]]:
    """Every argument of every op that is a number: op, argument, annotation."""
    for name in ops.__all__:
        for parameter in inspect.signature(getattr(ops, name)).parameters.values():
            if parameter.annotation in ("int", "float"):
                yield name, parameter.name, parameter.annotation


@pytest.mark.parametrize(("name", "argument", "annotation"), list(number_arguments()))
def test_each_number_of_each_op(name: str, argument: str, annotation: str) -> None:
    noun = "a whole number" if annotation == "int" else "a number"
    for kind, value in (NO_INT if annotation == "int" else NO_FLOAT).items():
        for build in calls(name, argument, value):
            with pytest.raises(ArgumentError) as caught, scope("blk.3"):
                build()
            message = f"blk.3.{name}: {argument} is {kind}: it must be {noun}"
            assert str(caught.value).startswith(message)


def calls(name: str, argument: str, value: object) -> list[Callable[[], object]]:
    """The call with all arguments in their places, and with those from this one on by name."""
    function = getattr(ops, name)
    values = given(name, argument, value)
    parameters = list(inspect.signature(function).parameters)
    i = parameters.index(argument)
    named = dict(zip(parameters[i:], values[i:], strict=False))
    return [lambda: function(*values), lambda: function(*values[:i], **named)]


EDGES = [0, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), math.nan, math.inf, -math.inf, 1e-300,
         np.float16(3), np.int8(-3), np.uint64(2**64 - 1), "f32", "", (1,), {}, len]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ops.__all__)
def test_whatever_is_given_is_refused_or_runs(name: str) -> None:
    """Values at the ends of their ranges, and of any kind, in each argument of each op."""
    for argument in inspect.signature(getattr(ops, name)).parameters:
        for value in EDGES:
            try:
                node = called(name, argument, value)
            except GgmlpyError:
                continue
            assert isinstance(node, Tensor)
            if node.spec.n_bytes < 1 << 13:
                with suppress(CallbackError):  # of a function that takes other arguments
                    Executable(Graph(node), [ReferenceBackend()]).run()


def test_numpys_numbers_are_numbers() -> None:
    x: Any = tensor()
    one: Any = np.int16(1)
    half: Any = np.float32(0.5)
    node = ops.group_norm(x, one, half)
    assert node.op is not None
    assert {k: type(v) for k, v in node.op.params().items()} == {"n_groups": int, "eps": float}
    ne: Any = np.array([16, 2])
    assert ops.reshape_2d(ops.view_1d(x, ne[0] * 2, ne[1] * 4), *ne).ne == (16, 2, 1, 1)


def test_python_counts_the_arguments() -> None:
    function: Any = ops.rms_norm
    x = tensor()
    uses: list[Callable[[], object]] = [
        lambda: function(x),
        lambda: function(x, 1e-5, 3),
        lambda: function(x, 1e-5, eps=1e-5),
        lambda: function(x, epsilon=1e-5),
    ]
    for use in uses:
        with pytest.raises(TypeError, match=r"rms_norm\(\) "):
            use()


@pytest.mark.parametrize(
    "sections", [3, None, "1111", np.array(4), [1, 1, 1, 0.5], [1, 1, None, 1]]
)
def test_sections_are_whole_numbers(sections: Any) -> None:
    pos = from_numpy(np.zeros(4, np.int32))
    with pytest.raises(ArgumentError, match=r"^rope_multi: sections(\[[23]\])? is "):
        ops.rope_multi(tensor(), pos, None, 32, sections, 8, 0, 1e4, 1.0, 0.0, 1.0, 0.0, 0.0)


def test_all_ops_but_one_take_tensors() -> None:
    assert {name for name, _ in tensor_arguments()} == set(ops.__all__) - {"arange", "custom_4d"}


def test_the_message() -> None:
    w = tensor()
    with pytest.raises(ArgumentError) as caught:
        ops.mul_mat(w, np.ones((2, 32), np.float32))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "mul_mat: b is a numpy array (float32, shape (2, 32)): it must be a tensor"
        " (ggmlpy.from_numpy makes one of an array)"
    )
    with pytest.raises(TypeError):  # which ArgumentError is
        ops.add(w, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["2", None, [1.0], np.ones(32, np.float32)])
def test_operators_take_tensors_and_numbers(value: Any) -> None:
    x = tensor()
    uses: list[Callable[[], object]] = [
        lambda: x + value,
        lambda: x - value,
        lambda: x * value,
        lambda: x / value,
        lambda: value + x,
        lambda: value - x,
        lambda: value * x,
    ]
    for use in uses:
        with pytest.raises(ArgumentError, match="must be a tensor or a number"):
            use()


def test_numbers_that_operators_refuse() -> None:
    x = tensor()
    values: list[Any] = [10**400, True, 1e39, 1j]
    for value in values:
        with pytest.raises(ArgumentError):
            x * value
    with pytest.raises(ArgumentError, match=r"^reshape: there are 5 counts: there must be 1 to 4$"):
        x.reshape(2, 2, 2, 2, 64)


def test_a_division_by_zero_is_that_of_floats() -> None:
    x = from_numpy(np.array([1, -1, 0], np.float32))
    got = compute([x / 0, x / -0.0], backend="reference")
    np.testing.assert_array_equal(got, [[np.inf, -np.inf, np.nan], [-np.inf, np.inf, np.nan]])


def test_operators_with_numbers() -> None:
    a = np.array([1.0, -2.0, 4.0], np.float32)
    x = from_numpy(a)
    numbers: list[Any] = [2, 2.5, np.float32(0.5), np.int64(3)]
    for number in numbers:
        got = compute([x + number, number + x, x - number, number - x, x * number, number * x,
                       x / number], backend="reference")  # fmt: skip
        n = np.float32(number)
        want = [a + n, n + a, a - n, n - a, a * n, n * a, a / n]
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_there_is_no_matrix_operator() -> None:
    x = tensor()
    with pytest.raises(TypeError, match="unsupported operand"):
        x @ x  # type: ignore[operator]
