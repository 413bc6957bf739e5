"""The judge must see what is wrong: every kind of fault, on its own."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy.conformance import CASES, Case, compare, nmse

CASE = Case("mul", ne=[(8, 4), (8, 4)])


def good() -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (4, 8)).astype(np.float32)


def test_equal_results_agree() -> None:
    assert compare(CASE, good(), good()) == ""
    with_edges = good()
    with_edges[0, :3] = [np.nan, np.inf, -np.inf]
    assert compare(CASE, with_edges, with_edges.copy()) == ""


@pytest.mark.parametrize(
    ("value", "found"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf"), (10.0, "NMSE")]
)
def test_one_wrong_element(value: float, found: str) -> None:
    got = good()
    got[2, 5] = value
    message = compare(CASE, got, good())
    assert found in message
    assert "(2, 5)" in message


@pytest.mark.parametrize("want_value", [np.nan, np.inf])
def test_a_finite_value_in_the_place_of_an_edge(want_value: float) -> None:
    want = good()
    want[1, 1] = want_value
    assert "(1, 1)" in compare(CASE, good(), want)


def test_the_sign_of_infinity_counts() -> None:
    got, want = good(), good()
    got[0, 0], want[0, 0] = np.inf, -np.inf
    assert "inf" in compare(CASE, got, want)


def test_the_limit_is_the_limit() -> None:
    want = np.ones(100, np.float32)
    case = Case("mul", ne=[(100,), (100,)], max_nmse=1e-4)
    within, beyond = want * np.float32(1.0099), want * np.float32(1.0101)
    assert compare(case, within, want) == ""
    assert "NMSE" in compare(case, beyond, want)


def test_shapes_and_integers_are_exact() -> None:
    assert "shape" in compare(CASE, good()[:3], good())
    ids = np.arange(6, dtype=np.int32)
    assert compare(CASE, ids, ids) == ""
    assert "integers" in compare(CASE, ids[::-1], ids)


def test_anything_against_zeros_is_infinitely_wrong() -> None:
    zeros = np.zeros(4, np.float32)
    assert nmse(zeros, zeros) == 0
    assert nmse(zeros + np.float32(1e-30), zeros) == np.inf


def test_what_a_mask_cuts_off_must_be_exactly_zero() -> None:
    case = next(c for c in CASES if c.op == "flash_attn_ext")
    want = good()
    want[1] = 0
    got = want.copy()
    got[1, 3] = 1e-20
    assert "0" in compare(case, got, want)
    assert compare(CASE, got, want) == ""


def test_limits_follow_the_type_that_is_written() -> None:
    def limit(type: str, source: str = "f32") -> float:
        return Case("set_rows", ne=[(64, 17), (64, 5), (5,)], types=(type, source, "i64")).max_nmse

    assert limit("f16") == 1e-7
    assert limit("q4_0") == 4 * limit("q5_0") == 64 * limit("q8_0")
    assert limit("q8_0", "f16") == 16 * limit("q8_0")
    assert Case("cpy", ne=[(64,), (64,)], types=("q8_0", "f32")).max_nmse == 1e-7
