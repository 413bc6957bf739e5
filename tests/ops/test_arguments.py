"""What is no tensor where one must be: an ArgumentError that names op, argument and kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError, ops, scope
from ggmlpy.tensor import Tensor, from_numpy

KINDS = {
    "a float": 1.5,
    "an int": 3,
    "a list": [1.0],
    "a str": "x",
    "a numpy array (float64, shape (3,))": np.ones(3),
}
# Scalars that get past checks which come before those of the tensors.
SCALARS = {"axis0": 0, "axis2": 2, "axis3": 3, "mode": 0, "sections": (1, 1, 1, 1), "op": 0}


def tensor_arguments() -> Iterator[tuple[str, str]]:
    """Every argument of every op that takes a tensor: op, argument."""
    for name in ops.__all__:
        for parameter in inspect.signature(getattr(ops, name)).parameters.values():
            if parameter.annotation.split(" | ")[0] == "Tensor":
                yield name, parameter.name


def given(name: str, argument: str, value: object) -> list[Any]:
    """Arguments of the op: `value`, tensors where tensors must be, and some scalars."""
    values: list[Any] = []
    for parameter in inspect.signature(getattr(ops, name)).parameters.values():
        if parameter.name == argument:
            values.append(value)
        elif parameter.annotation.startswith("Tensor"):
            values.append(scores(name) if parameter.name == "a" else tensor())
        elif "str" in parameter.annotation and parameter.name == "type":
            values.append("f32")
        elif parameter.default is inspect.Parameter.empty:
            values.append(SCALARS.get(parameter.name, 1))
    return values


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
            getattr(ops, name)(*given(name, argument, value))
        message = str(caught.value)
        assert message.startswith("blk.3.")
        assert f" is {kind}: it must be a tensor" in message


def test_all_ops_but_one_take_tensors() -> None:
    assert {name for name, _ in tensor_arguments()} == set(ops.__all__) - {"arange"}


def test_the_message() -> None:
    w = tensor()
    with pytest.raises(ArgumentError) as caught:
        ops.mul_mat(w, np.ones((2, 32), np.float32))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "mul_mat: x is a numpy array (float32, shape (2, 32)): it must be a tensor"
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


def test_operators_with_numbers() -> None:
    from ggmlpy import compute

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
