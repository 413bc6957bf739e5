"""The benchmark of scales of x: x is rounded as the CPU backend rounds it."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlpy
from benchmarks.scale_of_x import BLOCKS, X, errors, main, quantized, rounded
from ggmlpy import ops
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.types import type_of
from tests.cpu.products import run

SHAPE = (5, 512)


@pytest.mark.parametrize("name", X)
def test_x_is_rounded_as_the_backend_rounds_it(name: str) -> None:
    """In units of the error of rounding, products differ by nothing."""
    x = X[name](np.random.default_rng(1), SHAPE).astype(np.float32)
    weights = np.random.default_rng(2).standard_normal((16, 512), np.float32)
    leaf = ggmlpy.from_bytes(from_float(weights, type_of("q8_0")), "q8_0", (512, 16))
    got = run(ops.mul_mat(leaf, ggmlpy.from_numpy(x)))
    of_q8_0 = quantized(weights.astype(np.float64), "q8_0")
    per_32, per_256 = (rounded(x.astype(np.float64), n) @ of_q8_0.T for n in BLOCKS)
    step = np.abs(per_32 - x @ of_q8_0.T).max()
    assert np.abs(got - per_32).max() < 1e-3 * step
    assert np.abs(got - per_256).max() > 0.1 * step


def test_scales_are_of_the_largest() -> None:
    x = np.zeros((1, 512))
    x[0, [3, 40, 300]] = 127, -0.4, 254
    assert rounded(x, 32)[0, [3, 40, 300]].tolist() == [127, -0.4, 254]
    assert rounded(x, 256)[0, [3, 40, 300]].tolist() == [127, 0, 254]
    x[0, 4], x[0, 301] = 100.4, 100.4
    assert rounded(x, 256)[0, [4, 301]].tolist() == [100, 100]


def test_one_scale_for_more_elements_loses_more() -> None:
    weights = np.random.default_rng(0).standard_normal((16, 1024))
    for draw in X.values():
        per_32, per_256 = errors(draw(np.random.default_rng(1), (16, 1024)), weights)
        assert 0 < per_32 < per_256 < 0.1


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--types", "q8_0,q4_K", "--rows", "2"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in X)
    assert all(f"{type}, per {n}" in shown for type in ("q8_0", "q4_K") for n in BLOCKS)
    assert "weights of q8_0: 0.5" in shown
    with pytest.raises(SystemExit):
        main(["--types", "f16"])
    assert "f16 is no type that can be quantised to" in capsys.readouterr().err
