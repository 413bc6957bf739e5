"""Arithmetic and activations against the math module, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.errors import IndexOutOfRange
from tests.ops.values import close, integers, leaf, run, uniform

Scalar = Callable[[float], float]


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gauss(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


UNARY: dict[str, Scalar] = {
    "abs": abs,
    "sgn": lambda x: (x > 0) - (x < 0),
    "neg": lambda x: -x,
    "step": lambda x: 1.0 if x > 0 else 0.0,
    "tanh": math.tanh,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "relu": lambda x: x if x > 0 else 0.0,
    "sigmoid": logistic,
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x * logistic(1.702 * x),
    "gelu_erf": lambda x: x * gauss(x),
    "silu": lambda x: x * logistic(x),
    "hardswish": lambda x: x * min(1, max(0, (x + 3) / 6)),
    "hardsigmoid": lambda x: min(1, max(0, (x + 3) / 6)),
    "exp": math.exp,
    "expm1": math.expm1,
    "softplus": lambda x: math.log1p(math.exp(x)),
    "floor": math.floor,
    "ceil": math.ceil,
    "round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "trunc": math.trunc,
}
POINTWISE: dict[str, Scalar] = UNARY | {
    "sqr": lambda x: x * x,
    "sin": math.sin,
    "cos": math.cos,
}


@pytest.mark.parametrize("name", POINTWISE)
def test_against_math(name: str) -> None:
    x = np.concatenate([uniform(1, 200, low=-6, high=6).ravel(), np.arange(-5, 5.5, 0.5)])
    x = x.astype(np.float32)
    got = run(getattr(ops, name)(leaf(x)))
    close(got.ravel(), np.array([POINTWISE[name](float(v)) for v in x], np.float32))


@pytest.mark.parametrize("name", ["sqrt", "log"])
def test_roots_and_logarithms(name: str) -> None:
    x = np.array([0.25, 1, 2, 100, 0, -1], np.float32)
    got = run(getattr(ops, name)(leaf(x))).ravel()
    close(got[:4], np.array([getattr(math, name)(v) for v in x[:4]], np.float32))
    assert got[4] == (0 if name == "sqrt" else -math.inf)
    assert np.isnan(got[5])


@pytest.mark.parametrize("name", UNARY)
def test_extremes_neither_overflow_nor_lose_nan(name: str) -> None:
    x = np.array([-1e4, 1e4, np.nan], np.float32)
    got = run(getattr(ops, name)(leaf(x))).ravel()
    assert not np.isnan(got[:2]).any()
    assert np.isnan(got[2]) or name == "step"  # no number is above 0, NaN is not either


@pytest.mark.parametrize("name", ["silu", "add", "scale"])
@pytest.mark.parametrize("type", [np.float16, np.float32])
def test_the_type_stays(name: str, type: type[np.generic]) -> None:
    x = leaf(uniform(2, 9, 3).astype(type))
    more: dict[str, list[Any]] = {"silu": [], "add": [leaf(uniform(3, 9, 3))], "scale": [2.0]}
    y = getattr(ops, name)(x, *more[name])
    assert y.type is x.type


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("ne", [(6, 4, 2, 3), (1, 1, 1, 1), (3, 2, 1, 3), (6, 1, 2, 1)])
def test_the_second_is_repeated(name: str, ne: tuple[int, int, int, int]) -> None:
    a, b = uniform(4, 6, 4, 2, 3), uniform(5, *ne, low=0.5, high=1)
    got = run(getattr(ops, name)(leaf(a), leaf(b)))
    for i3, i2, i1, i0 in np.ndindex(a.shape):
        other = b[i3 % ne[3], i2 % ne[2], i1 % ne[1], i0 % ne[0]]
        want = BINARY[name](float(a[i3, i2, i1, i0]), float(other))
        assert got[i3, i2, i1, i0] == pytest.approx(want, rel=1e-6)


def test_parameters() -> None:
    x = uniform(6, 11)
    close(run(ops.scale_bias(leaf(x), 2.5, -0.5)), 2.5 * x - 0.5)
    close(run(ops.leaky_relu(leaf(x), 0.1)), np.where(x > 0, x, 0.1 * x))
    got = run(ops.clamp(leaf(np.array([-2, 0.1, 2, np.nan], np.float32)), -0.5, 0.5)).ravel()
    np.testing.assert_array_equal(got, np.array([-0.5, 0.1, 0.5, np.nan], np.float32))
    close(run(ops.add1(leaf(x), leaf(np.array([3], np.float32)))), x + 3)


def test_xielu_of_its_paper() -> None:
    x = uniform(7, 50, low=-3, high=3).ravel()
    got = run(ops.xielu(leaf(x), 0.8, 0.3, 0.5, -1e-6)).ravel()
    alpha_n, alpha_p = 0.5 + math.log1p(math.exp(0.8)), math.log1p(math.exp(0.3))
    for v, y in zip(x.astype(float), got, strict=True):
        if v > 0:
            want = alpha_p * v * v + 0.5 * v
        else:
            want = alpha_n * (math.expm1(min(v, -1e-6)) - v) + 0.5 * v
        assert y == pytest.approx(want, rel=1e-5, abs=1e-6)


GATES: dict[str, Scalar] = {
    "reglu": UNARY["relu"],
    "geglu": UNARY["gelu"],
    "swiglu": UNARY["silu"],
    "geglu_erf": UNARY["gelu_erf"],
    "geglu_quick": UNARY["gelu_quick"],
}


@pytest.mark.parametrize("name", GATES)
def test_three_forms_of_a_gate(name: str) -> None:
    gate, up = uniform(8, 5, 3, low=-4, high=4), uniform(9, 5, 3)
    want = np.vectorize(GATES[name])(gate.astype(np.float64)) * up
    close(run(getattr(ops, name + "_split")(leaf(gate), leaf(up))), want)
    both = np.concatenate([gate, up], axis=3)
    close(run(getattr(ops, name)(leaf(both))), want)
    turned = np.concatenate([up, gate], axis=3)
    close(run(getattr(ops, name + "_swapped")(leaf(turned))), want)


def test_the_clamped_gate() -> None:
    gate, up = uniform(10, 40, low=-9, high=9), uniform(11, 40, low=-9, high=9)
    got = run(ops.swiglu_oai(leaf(gate), leaf(up), 1.702, 7.0)).ravel()
    for g, u, y in zip(gate.ravel().astype(float), up.ravel().astype(float), got, strict=True):
        g, u = min(g, 7.0), max(-7.0, min(u, 7.0))
        assert y == pytest.approx(g * logistic(1.702 * g) * (u + 1), rel=1e-5, abs=1e-6)


def test_biases_of_experts() -> None:
    a, b = uniform(12, 5, 2, 3), uniform(13, 5, 4)
    ids = np.array([[3, 0], [1, 1], [2, 3]], np.int32)
    got = run(ops.add_id(leaf(a), leaf(b), leaf(ids)))
    for t, u in np.ndindex(3, 2):
        close(got[0, t, u], a[0, t, u] + b[0, 0, ids[t, u]])
    wrong = ops.add_id(leaf(a), leaf(b), integers([3, 0], [1, 4], [2, 3]))
    with pytest.raises(IndexOutOfRange, match=r"add_id: ids\[1, 1, 0, 0\] is 4: .* from 0 to 3"):
        run(wrong)


def test_adding_to_quantised_rows() -> None:
    a, b = uniform(14, 64, 3), uniform(15, 64)
    y = ops.add(ops.cast(leaf(a), "q8_0"), leaf(b))
    assert y.type.name == "q8_0"
    np.testing.assert_allclose(run(y), a + b, atol=2 / 100)  # two roundings to 1 / 127 of 2


def test_operators_and_methods_are_these_functions() -> None:
    a, b = uniform(16, 4, 3), uniform(17, 4, 3, low=1, high=2)
    x, y = leaf(a), leaf(b)
    close(run(x + y), a + b)
    close(run(x - y), a - b)
    close(run(x * y), a * b)
    close(run(x / y), a / b)
    close(run(-(2.0 * x + 1.0) / 4.0 - 0.5), -(2 * a + 1) / 4 - 0.5)
    close(run(x.transpose().cont().reshape(12)).ravel(), a[0, 0].T.ravel())
    close(run(x.permute(1, 0, 2, 3).cast("f16")), a.swapaxes(2, 3).astype(np.float16))
