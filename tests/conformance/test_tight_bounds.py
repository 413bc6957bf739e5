"""Bounds are no wider than rounding in f32 explains: finer mistakes than those of test_bounds.py,
and values elsewhere in a tensor that must not widen them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmlpy import from_numpy, ops
from ggmlpy.backends.rounding import Rounding
from ggmlpy.conformance import CASES, Case, judge
from ggmlpy.conformance.bounds import expect
from ggmlpy.conformance.bounds.exact import EXACT
from ggmlpy.conformance.bounds.expected import F64
from ggmlpy.conformance.bounds.products import rounded_activations
from ggmlpy.conformance.checks import check_case
from ggmlpy.graph.arrays import read_array, row_view
from ggmlpy.graph.tensor import Tensor
from ggmlpy.ops.attention import FlashAttnExt
from tests.conformance.faulty import Array, FaultyBackend, Mistake, Work

SMALL = [case for case in CASES if max((n for ne in case.ne for n in ne), default=0) < 60_000]


def to_bits(x: Array, n_bits: int) -> Array:
    """Rounded to so many significant bits."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    rounded = np.ldexp(np.rint(mantissa * 2.0**n_bits) / 2.0**n_bits, exponent)
    return np.where(np.isfinite(x), rounded, x)


def share_found(mistake: Mistake, cases: list[Case], n_least: int) -> float:
    """Of the cases whose result the mistake changes."""
    n_met = n_found = 0
    for case in cases:
        backend = FaultyBackend(mistake)
        wrong = check_case(case, backend)
        n_met += backend.met > 0
        n_found += bool(wrong) and backend.met > 0
    assert n_met > n_least
    return n_found / n_met


def rounds(work: Work) -> bool:
    return work.op.name not in EXACT and work.node.type.name == "f32" and bool(work.node.src)


def writes_another(work: Work, values: Array) -> bool:
    """Write a wrong result; not where it is the right one."""
    right = work.op.reference(*work.sources()).astype(np.float32)
    if np.array_equal(values.astype(np.float32), right, equal_nan=True):
        return False
    work.write(values)
    return True


def result_as_f16(work: Work) -> bool:
    if not rounds(work):
        return False
    return writes_another(work, to_bits(work.op.reference(*work.sources()), 11))


def first_source_as_f16(work: Work) -> bool:
    if not rounds(work) or not work.node.src[0].type.is_float:
        return False
    first, *rest = work.sources()
    return writes_another(work, work.op.reference(to_bits(first, 11), *rest))


@pytest.mark.parametrize("mistake", [result_as_f16, first_source_as_f16])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_results_of_half_precision_are_found(mistake: Mistake) -> None:
    assert share_found(mistake, SMALL, 400) >= 0.99


class _HalfWeights(FlashAttnExt):
    """Attention that rounds exponentials before they meet v."""

    def attend(self, query: F64, keys: F64, values: F64, bias: F64, sink: float) -> F64:
        scores = self.scale * (keys @ query)
        if self.logit_softcap != 0:
            scores = self.logit_softcap * np.tanh(scores / self.logit_softcap)
        scores = scores + bias
        largest = np.maximum(scores.max(initial=-np.inf), sink)
        if np.isneginf(largest):
            return np.zeros(values.shape[1])
        weights = np.exp(scores - largest)
        total = weights.sum() + np.exp(sink - largest)
        attended: F64 = to_bits(weights, 11) @ values / total
        return attended


def weights_as_f16(work: Work) -> bool:
    op = work.op
    if not isinstance(op, FlashAttnExt):
        return False
    rounded = _HalfWeights(
        op.scale, op.max_bias, op.logit_softcap, op.has_mask, op.has_sinks, op.has_lists
    )
    return writes_another(work, rounded.reference(*work.sources()))


def test_attention_weights_of_half_precision_are_found() -> None:
    cases = [case for case in CASES if case.op == "flash_attn_ext"]
    assert share_found(weights_as_f16, cases, 100) >= 0.95


def stored_q8_0(work: Work, scale: Callable[[F64], Array]) -> bool:
    """Write a q8_0 result with scales that are rounded in this way, and codes to the nearest."""
    if work.node.type.name != "q8_0" or any(x.type.is_quantized for x in work.node.src[:1]):
        return False
    values, rows = work.op.reference(*work.sources()), work.op.written_rows(*work.sources())
    work.run()
    data, offset = work.memory(work.node)
    stored = row_view(data, work.node.spec, offset)
    blocks = values.astype(np.float64).reshape(*stored.shape[:3], -1, 32)
    d = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    codes = np.rint(blocks / np.where(d == 0, 1, d)).astype(np.int8).view(np.uint8)
    halves = np.ascontiguousarray(scale(d)).view(np.uint8)
    made = np.concatenate([halves, codes], axis=-1).reshape(stored.shape)
    picked = slice(None) if rows is None else rows
    stored[picked] = made[picked]
    return True


def truncated(d: F64) -> Array:
    nearest = d.astype(np.float16)
    return np.where(nearest > d, np.nextafter(nearest, np.float16(0)), nearest)


def test_a_scale_of_q8_0_is_rounded_to_the_nearest() -> None:
    cases = [c for c in CASES if c.op in ("set_rows", "cpy", "cast") and "q8_0" in c.id]
    assert share_found(lambda work: stored_q8_0(work, truncated), cases, 5) >= 0.95


def test_codes_of_q8_0_may_be_found_in_higher_precision() -> None:
    cases = [c for c in CASES if c.op in ("set_rows", "cpy", "cast") and "q8_0" in c.id]
    for case in cases:
        for seed in range(5):
            right = FaultyBackend(lambda work: stored_q8_0(work, lambda d: d.astype(np.float16)))
            assert check_case(case, right, seed=seed) == "", (case.id, seed)


# What must not widen a bound.


def leaf(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def error_of(node: Tensor, rounding: Rounding = Rounding.F32) -> F64:
    sources = []
    for source in node.src:
        assert source.root.place is not None
        data = source.root.place.buffer.read(source.root.place.offset, source.root.spec.n_bytes)
        sources.append(read_array(data, source.spec, source.view_offs))
    return expect(node, sources, rounding).error


def test_a_large_weight_that_meets_a_zero_does_not_widen_the_bound_of_a_product() -> None:
    weights, x = leaf(1, 8, 64), leaf(2, 4, 64)
    x[:, 7] = 0
    before = error_of(ops.mul_mat(from_numpy(weights), from_numpy(x)))
    weights[:, 7] = 1e6
    assert error_of(ops.mul_mat(from_numpy(weights), from_numpy(x))) == pytest.approx(before)


def test_only_what_lies_on_a_border_may_round_either_way() -> None:
    x = leaf(3, 2, 64)
    x[:, 0] = 1  # steps of 1 / 127
    x[0, 9] = 10.5 / 127
    x[1, 9] = 10.501 / 127
    slack = rounded_activations(x.reshape(1, 1, 2, 64), Rounding.INT8X32).slack
    assert slack is not None
    assert np.flatnonzero(slack).tolist() == [9]


def attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Tensor:
    cut = None if mask is None else from_numpy(mask.astype(np.float16))
    return ops.flash_attn_ext(from_numpy(q), from_numpy(k), from_numpy(v), cut, 0.125, 0.0, 0.0)


@pytest.mark.parametrize("cut", [-np.inf, -6e4])
def test_cells_without_a_weight_do_not_widen_the_bound_of_attention(cut: float) -> None:
    q, k, v = leaf(4, 1, 2, 3, 64), leaf(5, 1, 2, 40, 64), leaf(6, 1, 2, 40, 64)
    mask = np.zeros((1, 1, 3, 40), np.float32)
    mask[..., 30:] = -np.inf
    before = error_of(attention(q, k, v, mask))
    mask[..., 30:] = cut
    k[:, :, 30:] *= 100
    assert error_of(attention(q, k, v, mask)).max() < 1.2 * before.max()


def test_a_finite_mask_that_cuts_off_does_not_widen_the_bound_of_softmax() -> None:
    x, mask = from_numpy(leaf(7, 3, 40)), np.zeros((3, 40), np.float32)
    before = error_of(ops.soft_max_ext(x, from_numpy(mask), 1.0, 0.0))
    mask[:, 30:] = -1e9
    after = error_of(ops.soft_max_ext(x, from_numpy(mask), 1.0, 0.0))
    assert (after[..., :30] < 2 * before[..., :30]).all()  # weights are larger among fewer


def test_the_error_of_attention_shrinks_with_the_cells_that_it_is_the_mean_of() -> None:
    def relative(n_cells: int) -> float:
        q, k = leaf(8, 1, 1, 3, 64), leaf(9, 1, 1, n_cells, 64)
        v = np.ones((1, 1, n_cells, 64), np.float32)
        v[..., ::2, :] = -1
        return float(error_of(attention(q, k, v)).max())

    assert relative(2000) < 0.5 * relative(20)


def test_an_addition_is_rounded_once() -> None:
    a, b = leaf(10, 4, 32), leaf(11, 4, 32)
    node = ops.add(from_numpy(a), from_numpy(b))
    expected = expect(node, [a.reshape(1, 1, 4, 32), b.reshape(1, 1, 4, 32)])
    right = (a + b).reshape(1, 1, 4, 32)
    assert judge(node, right, expected) == ""
    assert "elements are wrong" in judge(node, np.nextafter(right, np.float32(2)), expected)
