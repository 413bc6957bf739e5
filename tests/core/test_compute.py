"""`compute`: one tensor, several, or a list of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggmlpy import AllocationError, ArgumentError, compute, from_numpy, ops

X = np.array([1.0, 2.0, 3.0], np.float32)


def test_one_tensor_gives_its_array() -> None:
    value = compute(ops.sqr(from_numpy(X)), backend="reference")
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, [1, 4, 9])


def test_several_give_a_list_in_order() -> None:
    x = from_numpy(X)
    square, negative = ops.sqr(x), ops.neg(x)
    for values in (
        compute(square, negative, backend="reference"),
        compute([square, negative], backend="reference"),
    ):
        assert isinstance(values, list)
        np.testing.assert_array_equal(values, [[1, 4, 9], [-1, -2, -3]])


def test_a_list_of_one_gives_a_list() -> None:
    values = compute([ops.sqr(from_numpy(X))], backend="reference")
    assert isinstance(values, list)
    np.testing.assert_array_equal(values, [[1, 4, 9]])


def test_a_tensor_may_be_asked_for_twice() -> None:
    y = ops.sqr(from_numpy(X))
    first, second = compute(y, y, backend="reference")
    np.testing.assert_array_equal(first, second)


def test_nothing_to_compute() -> None:
    nothing: list[tuple[Any, ...]] = [(), ([],)]
    for given in nothing:
        with pytest.raises(ArgumentError) as caught:
            compute(*given)
        assert str(caught.value) == "compute takes at least one tensor"


def test_memory_that_numpy_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*args: object) -> None:
        raise MemoryError("4 GiB")

    y = ops.add(x := from_numpy(np.ones(3, np.float32)), x).named("sum")
    monkeypatch.setattr(type(y.op), "reference", no_memory)
    with pytest.raises(AllocationError, match=r"^sum: 4 GiB$"):
        compute(y, backend="reference")
