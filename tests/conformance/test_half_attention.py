"""Bounds of attention that rounds q and weights to f16: that passes, coarser and other rounding is
found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance import CASES, Case
from ggmlpy.conformance.bounds.expected import F64
from ggmlpy.conformance.cases.attention import attention
from ggmlpy.conformance.checks import NotSupported, check_case
from ggmlpy.graph.tensor import Tensor
from ggmlpy.ops.attention import FlashAttnExt
from tests.conformance.faulty import Array, FaultyBackend, Work
from tests.conformance.test_tight_bounds import to_bits

ATTENTION = [case for case in CASES if case.op == "flash_attn_ext"]
SOME = ATTENTION[::3]
# Scores that are large enough for the rounding of q to be what results are wrong by.
SHARP = [
    attention(d, n, h, 113, mask=m, scale=3.0)
    for d in (32, 40, 64, 96, 128)
    for n in (1, 3, 5, 9)
    for h in ((4, 2), (3, 3), (6, 1))
    for m in ("random", "causal")
]


class _Rounded(FlashAttnExt):
    """Attention with weights of so many significant bits, also where they are summed."""

    n_bits = 53

    def attend(self, query: F64, keys: F64, values: F64, bias: F64, sink: float) -> F64:
        scores = self.scale * (keys @ query)
        if self.logit_softcap != 0:
            scores = self.logit_softcap * np.tanh(scores / self.logit_softcap)
        scores = scores + bias
        largest = np.maximum(scores.max(initial=-np.inf), sink)
        if np.isneginf(largest):
            return np.zeros(values.shape[1])
        weights = to_bits(np.exp(scores - largest), self.n_bits)
        attended: F64 = weights @ values / (weights.sum() + np.exp(sink - largest))
        return attended


class _Half(FaultyBackend):
    """Says that it rounds to f16; rounds q and weights to so many bits."""

    def __init__(self, q_bits: int, weight_bits: int, seen: Callable[[Array], Array]) -> None:
        rounded = type("rounded", (_Rounded,), {"n_bits": weight_bits})

        def attend(work: Work) -> bool:
            op = work.op
            if not isinstance(op, FlashAttnExt):
                return False
            q, k, v, *others = work.sources()
            others = [k.astype(np.float16), v.astype(np.float16), *others]
            fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
            work.write(seen(rounded(**fields).reference(to_bits(q, q_bits), *others)))
            return True

        super().__init__(attend)

    def rounding(self, node: Tensor) -> Rounding:
        return Rounding.F16


def share_wrong(
    q_bits: int, weight_bits: int, cases: list[Case], seen: Callable[[Array], Array] = lambda y: y
) -> float:
    n_met = n_wrong = 0
    for case in cases:
        backend = _Half(q_bits, weight_bits, seen)
        try:
            with np.errstate(all="ignore"):
                wrong = check_case(case, backend)
        except NotSupported:
            continue
        n_met += backend.met > 0
        n_wrong += bool(wrong)
    assert n_met > 100
    return n_wrong / n_met


def test_what_is_declared_passes() -> None:
    assert share_wrong(11, 11, ATTENTION) == 0


def test_exact_weights_pass() -> None:
    assert share_wrong(11, 53, SOME) == 0


def test_errors_of_weights_four_times_as_large_are_found() -> None:
    assert share_wrong(11, 9, SOME) >= 0.9


@pytest.mark.parametrize("q_bits", [9, 10, 12, 53])
def test_q_is_rounded_as_declared(q_bits: int) -> None:
    assert share_wrong(11, 11, SHARP) == 0
    assert share_wrong(q_bits, 11, SHARP) >= 0.9


def test_a_result_of_half_precision_is_found() -> None:
    assert share_wrong(11, 11, SOME, lambda y: to_bits(y, 9)) >= 0.95
