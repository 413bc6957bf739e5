"""Rope against rotations of complex numbers, one pair at a time in plain Python."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.ops.rope import Rope, RopeMode
from tests.ops.values import Floats, close, integers, leaf, run, uniform

BASE = 10000.0


def yarn(theta: float, i: int, n_dims: int, p: dict[str, Any]) -> complex:
    """The rotation for extrapolated angle theta of pair i, as a complex factor."""
    ext, scale = p.get("ext_factor", 0.0), p.get("freq_scale", 1.0)
    size = p.get("attn_factor", 1.0)
    angle = scale * theta
    if ext:
        bounds = []
        for beta, rounded in ((p.get("beta_fast", 32.0), math.floor), (1.0, math.ceil)):
            turns = math.log(512 / (beta * 2 * math.pi)) / (2 * math.log(p.get("freq_base", BASE)))
            bounds.append(rounded(n_dims * turns))
        low, high = max(bounds[0], 0), min(bounds[1], n_dims - 1)
        ramp = 1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
        angle = angle * (1 - ramp * ext) + theta * ramp * ext
        size *= 1 - 0.1 * math.log(scale)
    turn: complex = size * cmath.exp(1j * angle)
    return turn


def section_of(i: int, mode: int, sections: tuple[int, ...]) -> tuple[int, int]:
    """Which of the four positions turns pair i, and how many pairs of its section came before."""
    if not any(sections):
        return 0, i
    row = [axis for axis, count in enumerate(sections) for _ in range(count)]
    at = i % len(row)
    if mode == RopeMode.IMROPE:
        return (at % 3 if at < 3 * sections[at % 3] else 3), i
    return row[at], (at - row.index(row[at]) if mode == RopeMode.VISION else i)


def rope_by_pairs(
    x: Floats, pos: list[int], factors: list[float] | None, n_dims: int, mode: int, **p: Any
) -> Floats:
    y = x.astype(np.float64)
    sections = p.get("sections", (0, 0, 0, 0))
    n_tokens = x.shape[1]
    n_pairs = n_dims if mode == RopeMode.VISION else n_dims // 2
    for i in range(n_pairs):
        a, b = (2 * i, 2 * i + 1) if mode == RopeMode.NORMAL else (i, i + n_pairs)
        axis, power = section_of(i, mode, sections)
        step = p.get("freq_base", BASE) ** (-2.0 / n_dims)
        for t in range(n_tokens):
            theta = float(pos[axis * n_tokens + t])
            for _ in range(power):
                theta *= step
            turn = yarn(theta / (factors[i] if factors else 1.0), i, n_dims, p)
            z = (x[:, t, :, a] + 1j * x[:, t, :, b].astype(np.float64)) * turn
            y[:, t, :, a], y[:, t, :, b] = z.real, z.imag
    return y.astype(np.float32)


def rope(
    x: Floats, pos: list[int], factors: list[float] | None, n_dims: int, mode: int, **p: Any
) -> Floats:
    c = None if factors is None else leaf(np.array(factors, np.float32))
    y = ops.rope_multi(
        leaf(x), integers(*pos), c, n_dims, p.get("sections", (0, 0, 0, 0)), mode, 512,
        p.get("freq_base", BASE), p.get("freq_scale", 1.0), p.get("ext_factor", 0.0),
        p.get("attn_factor", 1.0), p.get("beta_fast", 32.0), 1.0,
    )  # fmt: skip
    return run(y)


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
@pytest.mark.parametrize("n_dims", [16, 10, 2])
@pytest.mark.parametrize("with_factors", [False, True])
@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"freq_scale": 0.5, "attn_factor": 1.5},
        {"freq_scale": 0.25, "ext_factor": 1.0},
        {"freq_scale": 0.25, "ext_factor": 0.6, "attn_factor": 0.9},
        {"freq_scale": 0.25, "ext_factor": 1.0, "freq_base": 10.0},  # the ramp ends past n_dims
        {"freq_scale": 0.25, "ext_factor": 1.0, "beta_fast": 300.0},  # and starts before 0
    ],
)
def test_against_complex_rotations(
    mode: int, n_dims: int, with_factors: bool, scaling: dict[str, float]
) -> None:
    x = uniform(1, 16, 3, 5, 2)
    pos = [0, 3, 511, 17, 100]
    factors = [0.90625 + 0.03125 * i for i in range(8)] if with_factors else None
    want = rope_by_pairs(x, pos, factors, n_dims, mode, **scaling)
    close(rope(x, pos, factors, n_dims, mode, **scaling), want)


@pytest.mark.parametrize(
    ("mode", "n_dims", "sections"),
    [
        (RopeMode.MROPE, 24, (4, 4, 4, 0)),
        (RopeMode.MROPE, 24, (3, 2, 2, 1)),  # 8 pairs a round, 12 pairs: the sections start again
        (RopeMode.MROPE, 16, (2, 3, 3, 0)),
        (RopeMode.IMROPE, 24, (4, 4, 4, 0)),
        (RopeMode.IMROPE, 24, (6, 3, 2, 1)),
        (RopeMode.VISION, 12, (6, 6, 0, 0)),
        (RopeMode.VISION, 12, (3, 4, 2, 3)),
    ],
)
def test_positions_of_four_axes(mode: int, n_dims: int, sections: tuple[int, ...]) -> None:
    x = uniform(2, 24, 2, 3)
    pos = [5, 6, 7, 1, 0, 9, 30, 20, 10, 2, 4, 8]  # three times, heights, widths, and the fourth
    factors = [1.0 + 0.0625 * i for i in range(12)]
    want = rope_by_pairs(x, pos, factors, n_dims, mode, sections=sections)
    close(rope(x, pos, factors, n_dims, mode, sections=sections), want)


def test_equal_positions_on_all_axes_are_a_plain_neox_rope() -> None:
    x = uniform(3, 24, 2, 3)
    plain = rope(x, [5, 6, 7], None, 24, RopeMode.NEOX)
    close(rope(x, [5, 6, 7] * 4, None, 24, RopeMode.MROPE, sections=(4, 4, 4, 0)), plain)
    close(rope(x, [5, 6, 7] * 4, None, 24, RopeMode.IMROPE, sections=(4, 4, 4, 0)), plain)


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
def test_there_and_back(mode: int) -> None:
    x = uniform(4, 16, 3, 4)
    there = rope(x, [3, 50, 7, 0], None, 16, mode)
    close(rope(there, [-3, -50, -7, 0], None, 16, mode), x)
    np.testing.assert_array_equal(there[:, 3], x[:, 3])


def test_dot_products_depend_on_distance_alone() -> None:
    q, k = uniform(5, 16), uniform(6, 16)
    dots = [
        float(np.sum(rope(q, [i], None, 16, 0) * rope(k, [i - 9], None, 16, 0)))
        for i in (9, 40, 300)
    ]
    np.testing.assert_allclose(dots, dots[0], rtol=1e-4)


def test_elements_past_n_dims_are_copied() -> None:
    x = uniform(7, 16, 2, 3)
    np.testing.assert_array_equal(rope(x, [1, 2, 3], None, 10, 0)[..., 10:], x[..., 10:])


def test_the_short_form() -> None:
    x = uniform(8, 16, 2, 3)
    y = ops.rope(leaf(x), integers(1, 2, 3), 16, 2)
    assert isinstance(y.op, Rope)
    assert y.op.mode is RopeMode.NEOX
    close(run(y), rope_by_pairs(x, [1, 2, 3], None, 16, 2))


def test_f16_stays_f16() -> None:
    x = uniform(9, 16, 2, 3).astype(np.float16)
    y = ops.rope(leaf(x), integers(1, 2, 3), 16, 0)
    assert y.type.name == "f16"
    want = rope_by_pairs(x.astype(np.float32), [1, 2, 3], None, 16, 0)
    np.testing.assert_allclose(run(y), want, rtol=1e-3, atol=1e-3)


def test_the_deprecated_form() -> None:
    x, pos, scaling = (
        leaf(uniform(10, 16, 2, 3)),
        integers(1, 2, 3),
        (9, 1e3, 0.5, 0.25, 1.5, 32, 2),
    )
    assert (
        ops.rope_custom(x, pos, 16, 2, *scaling).op
        == ops.rope_ext(x, pos, None, 16, 2, *scaling).op
    )
