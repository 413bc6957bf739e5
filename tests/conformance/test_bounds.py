"""Bounds find mistakes: those that an error limit for a whole result lets through.

Each mistake is made in every case that it is about, and found in at least 95 % of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance import CASES, Case
from ggmlpy.conformance.bounds import knows
from ggmlpy.conformance.bounds.products import rounded_activations
from ggmlpy.conformance.checks import check_case
from ggmlpy.graph.arrays import row_view
from ggmlpy.graph.op import OPS
from ggmlpy.graph.tensor import Tensor
from tests.conformance.faulty import Array, FaultyBackend, Mistake, Work

PRODUCTS = ("mul_mat", "mul_mat_id")


def of_products(values: Callable[[Work], Array]) -> Mistake:
    """A mistake in every product."""

    def mistake(work: Work) -> bool:
        if work.op.name not in PRODUCTS:
            return False
        work.write(values(work))
        return True

    return mistake


def too_large(work: Work) -> Array:
    values: Array = 1.02 * work.op.reference(*work.sources())
    return values


def with_x(change: Callable[[Array], Array]) -> Callable[[Work], Array]:
    """The product of changed activations."""

    def values(work: Work) -> Array:
        weights, x, *ids = work.sources()
        return work.op.reference(weights, change(x), *ids)

    return values


def to_bf16(x: Array) -> Array:
    return rounded_activations(x, Rounding.BF16).values


def to_8_bits(x: Array) -> Array:
    """The whole row with one scale."""
    d = np.abs(x).max(axis=-1, keepdims=True) / 127
    rounded: Array = np.rint(x / np.where(d == 0, 1, d)) * d
    return rounded


def without_last(work: Work) -> Array:
    """The last element of each sum is left out."""
    weights, x, *ids = work.sources()
    x = x.copy()
    x[..., -1] = 0
    return work.op.reference(weights, x, *ids)


def last_row_of_batch(work: Work) -> Array:
    """The result of the last row of activations is that of the row before, or 0."""
    right: Array = work.op.reference(*work.sources()).copy()
    right[-1, -1, -1] = right[-1, -1, -2] if right.shape[2] > 1 else 0
    return right


def last_column(work: Work) -> Array:
    """The last row of weights gives 0."""
    right: Array = work.op.reference(*work.sources()).copy()
    right[..., -1] = 0
    return right


IN_PRODUCTS = {
    "2 % too large": too_large,
    "activations as bf16": with_x(to_bf16),
    "activations as 8 bits": with_x(to_8_bits),
    "last element lost": without_last,
    "last row wrong": last_row_of_batch,
    "last column lost": last_column,
}


def truncated_q8_0(work: Work) -> bool:
    """What is stored as q8_0 has codes that are rounded towards 0."""
    if work.node.type.name != "q8_0" or any(x.type.is_quantized for x in work.node.src[:1]):
        return False
    values, rows = work.op.reference(*work.sources()), work.op.written_rows(*work.sources())
    work.run()
    data, offset = work.memory(work.node)
    stored = row_view(data, work.node.spec, offset)
    blocks = stored.reshape(*stored.shape[:3], -1, 34).copy()  # d f16 | 32 codes i8
    d = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    codes = np.trunc(values.reshape(*blocks.shape[:4], 32) / np.where(d == 0, 1, d))
    blocks[..., 2:] = np.clip(codes, -127, 127).astype(np.int8).view(np.uint8)
    picked = slice(None) if rows is None else rows
    stored[picked] = blocks.reshape(stored.shape)[picked]
    return True


class Truncating(FaultyBackend):
    """Says that it rounds activations to int8, and rounds them towards 0."""

    def __init__(self) -> None:
        super().__init__(of_products(with_x(to_truncated_8_bits)))

    def rounding(self, node: Tensor) -> Rounding:
        return Rounding.INT8X32


def to_truncated_8_bits(x: Array) -> Array:
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float64)
    d = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    truncated: Array = np.trunc(blocks / np.where(d == 0, 1, d)) * d
    return truncated.reshape(x.shape)


def found(make: Callable[[], FaultyBackend], cases: list[Case]) -> float:
    """The share in which a mistake is found, of about 300 of the cases that it is about."""
    n_met = n_found = 0
    for case in cases[:: max(1, len(cases) // 300)]:
        backend = make()
        wrong = check_case(case, backend)
        n_met += backend.met > 0
        n_found += bool(wrong) and backend.met > 0
    assert n_met > 10
    return n_found / n_met


@pytest.mark.parametrize("name", IN_PRODUCTS)
def test_mistakes_in_products_are_found(name: str) -> None:
    cases = [case for case in CASES if case.op in PRODUCTS]
    assert found(lambda: FaultyBackend(of_products(IN_PRODUCTS[name])), cases) >= 0.95


def test_a_wrong_rounding_of_activations_is_found() -> None:
    cases = [c for c in CASES if c.op in PRODUCTS and c.ne[0][0] % 32 == 0]
    assert found(Truncating, cases) >= 0.95


def test_a_wrong_rounding_to_q8_0_is_found() -> None:
    cases = [c for c in CASES if c.op in ("set_rows", "cpy", "cast") and "q8_0" in c.id]
    assert found(lambda: FaultyBackend(truncated_q8_0), cases) >= 0.95


def test_every_op_has_a_bound() -> None:
    assert {name for name, op in OPS.items() if op.computes and not knows(name)} == set()
