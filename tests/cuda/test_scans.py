"""Kernels of scans on the emulated device: counts of a run, sizes that are not in the table, bits
that depend neither on other sequences nor on how tokens are divided into runs, and bad spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cuda.emulated import available
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.checks import check_case
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import Tensor, from_numpy
from tests.counted import Build, Leaves, Numbers
from tests.cuda.runs import DEVICE, assert_counts_decide, bits

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

D, H, N, G = 20, 3, 12, 1  # a head's size, which is no power of two, heads, states, groups
RNG = np.random.default_rng(0)

# Any is the list of sources that have tokens.
Make = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Scan:
    """A scan with spans.

    tokens  counts of each source that has tokens, without their number
    state   counts of a sequence's states
    make    of tokens, states, ids and spans
    """

    tokens: tuple[tuple[int, ...], ...]
    state: tuple[int, ...]
    make: Make


def floats(*ne: int) -> Tensor:
    return from_numpy(RNG.uniform(-1, 1, ne[::-1]).astype(np.float32))


def _selective(n: int) -> Scan:
    rates = floats(n, H)
    return Scan(
        ((D, H), (H,), (N, G), (N, G)),
        (N, D, H),
        lambda x, s, ids, spans: ops.ssm_scan(s, x[0], x[1], rates, x[2], x[3], ids, spans=spans),
    )


def _linear(
    op: Callable[..., Tensor], tokens: tuple[tuple[int, ...], ...], *state: int, **more: float
) -> Scan:
    return Scan(tokens, state, lambda x, s, ids, spans: op(*x, s, spans=spans, **more))


def _wkv6(k: Tensor, v: Tensor, r: Tensor, td: Tensor, state: Tensor, spans: Tensor) -> Tensor:
    return ops.rwkv_wkv6(k, v, r, BONUS, td, state, spans=spans)


BONUS = floats(D, H)
HEADS, FLAT = (D, H), D * D * H
SCANS = {
    "ssm_scan, a decay for each head": _selective(1),
    "ssm_scan, one for each state": _selective(N),
    "gated_delta_net, a gate for each head":
        _linear(ops.gated_delta_net, (*(HEADS,) * 3, (1, H), (1, H)), D, D, H),
    "gated_delta_net, one for each element":
        _linear(ops.gated_delta_net, (*(HEADS,) * 4, (1, H)), D, D, H),
    "gated_linear_attn": _linear(ops.gated_linear_attn, (HEADS,) * 4, FLAT, scale=0.5),
    "rwkv_wkv6": _linear(_wkv6, (HEADS,) * 4, FLAT),
    "rwkv_wkv7": _linear(ops.rwkv_wkv7, (HEADS,) * 6, FLAT),
}  # fmt: skip
EACH_SCAN = pytest.mark.parametrize("name", SCANS)


def parts(result: Tensor, n_tokens: int, size: int, n_seqs: int) -> tuple[Tensor, Tensor]:
    """The outputs and the states of a scan with spans, as models take them out of its result."""
    n = 4 * D * H
    outputs = ops.view_2d(result, D * H, n_tokens, n, 0)
    return outputs, ops.view_2d(result, size, n_seqs, 4 * size, int(n_tokens) * n)


# --- counts that a run sets -----------------------------------------------------------------------


def _of_spans(scan: Scan) -> Build:
    def build(leaf: Leaves, n: Numbers) -> list[Tensor]:
        n_tokens = 2 * n.S
        tokens = [leaf.floats(f"x{i}", *ne, n_tokens) for i, ne in enumerate(scan.tokens)]
        states, ids = leaf.floats("s", *scan.state, n.S), leaf.ids("ids", 1, n.S)
        result = scan.make(tokens, states, ids, leaf.spans("spans", n.S))
        return [ops.cont(x) for x in parts(result, n_tokens, int(np.prod(scan.state)), n.S)]

    return build


def _tokens(leaf: Leaves, names: str, *ne: int) -> list[Tensor]:
    return [leaf.floats(name, *ne) for name in names]


def _gated(leaf: Leaves, n: Numbers) -> list[Tensor]:
    k, v, q, g = _tokens(leaf, "kvqg", 12, 3, n.T)
    return [ops.gated_linear_attn(k, v, q, g, leaf.floats("s", 432, 1), 0.5)]


def _rwkv_6(leaf: Leaves, n: Numbers) -> list[Tensor]:
    k, v, r, td = _tokens(leaf, "kvrd", 12, 3, n.T)
    return [ops.rwkv_wkv6(k, v, r, leaf.floats("tf", 12, 3), td, leaf.floats("s", 432, 1))]


def _rwkv_7(leaf: Leaves, n: Numbers) -> list[Tensor]:
    r, w, k, v, a, b = _tokens(leaf, "rwkvab", 12, 3, n.S)
    return [ops.rwkv_wkv7(r, w, k, v, a, b, leaf.floats("s", 432, n.S))]


def _delta_rule_of(gate: int, n_kept: int, of_sequences: bool) -> Build:
    def build(leaf: Leaves, n: Numbers) -> list[Tensor]:
        n_tokens, n_seqs = (2, n.S) if of_sequences else (n.T, 1)
        q, k, v = _tokens(leaf, "qkv", 12, 3, n_tokens, n_seqs)
        g, beta = (leaf.floats(name, size, 3, n_tokens, n_seqs) for name, size in
                   (("g", gate), ("beta", 1)))  # fmt: skip
        return [ops.gated_delta_net(q, k, v, g, beta, leaf.floats("s", 12, 12, 3, n_seqs), n_kept)]

    return build


def _selective_of(rates: int, n_kept: int, of_sequences: bool) -> Build:
    def build(leaf: Leaves, n: Numbers) -> list[Tensor]:
        n_tokens, n_seqs = (2, n.S) if of_sequences else (n.T, 2)
        x, dt = leaf.floats("x", 5, 3, n_tokens, n_seqs), leaf.floats("dt", 3, n_tokens, n_seqs)
        B, C = _tokens(leaf, "BC", 12, 1, n_tokens, n_seqs)
        states, ids = leaf.floats("s", 12, 5, 3, 4), leaf.ids("ids", 4, n_seqs)
        return [ops.ssm_scan(states, x, dt, leaf.floats("A", rates, 3), B, C, ids, n_kept)]

    return build


BUILDS: dict[str, Build] = {name: _of_spans(scan) for name, scan in SCANS.items()} | {
    "sequences of one length: gated_linear_attn": _gated,
    "sequences of one length: rwkv_wkv6": _rwkv_6,
    "sequences of one length: rwkv_wkv7": _rwkv_7,
    "any length: gated_delta_net": _delta_rule_of(1, 2, False),
    "any number: gated_delta_net": _delta_rule_of(12, 4, True),
    "any length: ssm_scan": _selective_of(12, 2, False),
    "any number: ssm_scan": _selective_of(1, 1, True),
}


@pytest.mark.parametrize("name", BUILDS)
def test_counts_of_a_run(name: str) -> None:
    """From the second run on the graph is a captured one."""
    assert_counts_decide(BUILDS[name], 9, (9, 1, 4, 7))


# --- sizes of which the table has none ------------------------------------------------------------


def _wkv(op: str, n: int, *spans: int) -> Case:
    token, state = (n, 1, 3), (n * n, *(spans or (1,)))
    ne = [*[token] * (6 if op == "rwkv_wkv7" else 3), state]
    return _listed(Case(op, ne=ne), spans)


def _delta_rule(n: int, gate: int, *spans: int) -> Case:
    token, one = (n, 2, 3, 1), (1, 2, 3, 1)
    ne = [(n, 1, 3, 1)] * 2 + [token, (gate, 2, 3, 1), one, (n, n, 2, *(spans or (1,)))]
    return _listed(Case("gated_delta_net", ne=ne), spans)


def _listed(case: Case, spans: Sequence[int]) -> Case:
    if not spans:
        return case
    types = ("f32",) * len(case.ne) + ("i32",)
    return Case(case.op, ne=[*case.ne, (2, *spans)], types=types, **case.params)


SIZES = [
    # heads whose teams are blocks of several warps
    *(_wkv("rwkv_wkv7", n, *spans) for n in (257, 300, 520) for spans in ((), (2,))),
    *(_delta_rule(n, gate, *spans) for n in (257, 300) for gate in (1, n) for spans in ((), (2,))),
    Case("gated_linear_attn", ne=[(300, 2, 4)] * 4 + [(180_000, 2)], scale=0.5),
    Case("ssm_scan", types=("f32",) * 6 + ("i32",),
         ne=[(300, 3, 2, 2), (3, 2, 4, 2), (2, 4, 2), (300, 2), *[(300, 1, 4, 2)] * 2, (2,)]),
    Case("ssm_scan", types=("f32",) * 6 + ("i32",) * 2,
         ne=[(300, 9, 2, 2), (9, 2, 4), (2, 4), (1, 2), *[(300, 1, 4)] * 2, (2,), (2, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("case", SIZES, ids=lambda case: str(case.id))
def test_sizes(case: Case) -> None:
    assert check_case(case, DEVICE) == ""


# --- bits -----------------------------------------------------------------------------------------

LENGTHS = (5, 1, 9, 2)
FIRST = np.cumsum([0, *LENGTHS])

Array = NDArray[np.float32]


def values(ne: Sequence[int], n: int) -> Array:
    return RNG.uniform(-1, 1, (n, *ne[::-1])).astype(np.float32)


def scanned(
    scan: Scan, tokens: Sequence[Array], states: Array, spans: Sequence[tuple[int, int]]
) -> tuple[Array, Array]:
    """The outputs [T, …] and the new states of a run."""
    n_tokens, n_seqs = len(tokens[0]), len(spans)
    ids = from_numpy(np.arange(n_seqs, dtype=np.int32))
    x = [from_numpy(values) for values in tokens]
    result = scan.make(x, from_numpy(states), ids, from_numpy(np.array(spans, np.int32)))
    flat = bits(result).view(np.float32).reshape(-1)
    n = n_tokens * D * H
    return flat[:n].reshape(n_tokens, -1), flat[n:].reshape(states.shape)


@EACH_SCAN
def test_a_sequence_has_the_bits_that_it_has_alone(name: str) -> None:
    """In whatever order the others come, and whatever parts its tokens come in."""
    scan = SCANS[name]
    tokens = [values(ne, sum(LENGTHS)) for ne in scan.tokens]
    before = values(scan.state, len(LENGTHS))
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        spans = [(int(FIRST[r]), LENGTHS[r]) for r in order]
        outputs, after = scanned(scan, tokens, before[list(order)], spans)
        for i, r in enumerate(order):
            state = before[r : r + 1]
            alone: list[Array] = []
            for n in (4, 1, 4) if r == 2 else (LENGTHS[r],):
                first = int(FIRST[r]) + sum(len(y) for y in alone)
                y, state = scanned(scan, [x[first : first + n] for x in tokens], state, [(0, n)])
                alone.append(y)
            assert np.array_equal(
                np.concatenate(alone).view(np.uint32),
                outputs[FIRST[r] : FIRST[r] + LENGTHS[r]].view(np.uint32),
            )
            assert np.array_equal(state[0].view(np.uint32), after[i].view(np.uint32))


T, S = 4, 5
TOKENS = [floats(D, H, T, S) for _ in range(6)]
STATES = floats(D, D, H, S)


def _part(x: Tensor, first: int, n: int) -> Tensor:
    return ops.cont(ops.view_4d(x, *x.ne[:3], n, *x.nb[1:], first * x.nb[3]))


def _flat(make: Callable[..., Tensor], n_rows: int) -> Callable[[int, int], Tensor]:
    """An op whose sequences follow one another in the tokens."""

    def build(first: int, n: int) -> Tensor:
        rows = [ops.reshape_3d(_part(x, first, n), D, H, T * n) for x in TOKENS[:n_rows]]
        return make(*rows, ops.reshape_2d(_part(STATES, first, n), D * D * H, n))

    return build


def _of_one_length(first: int, n: int) -> Tensor:
    q, k, v, g = (_part(x, first, n) for x in TOKENS[:4])
    beta = ops.cont(ops.view_4d(g, 1, H, T, n, *g.nb[1:], 0))
    return ops.gated_delta_net(q, k, v, g, beta, _part(STATES, first, n))


BATCHES: dict[str, Callable[[int, int], Tensor]] = {
    "gated_linear_attn": _flat(lambda k, v, q, g, s: ops.gated_linear_attn(k, v, q, g, s, 0.5), 4),
    "rwkv_wkv6": _flat(lambda k, v, r, td, s: ops.rwkv_wkv6(k, v, r, BONUS, td, s), 4),
    "rwkv_wkv7": _flat(ops.rwkv_wkv7, 6),
    "gated_delta_net": _of_one_length,
}


@pytest.mark.parametrize("name", BATCHES)
def test_sequences_of_one_length_have_the_bits_that_they_have_alone(name: str) -> None:
    def split(found: NDArray[np.uint32], n: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        flat = found.reshape(-1)
        return flat[: D * H * T * n].reshape(n, -1), flat[D * H * T * n :].reshape(n, -1)

    outputs, states = split(bits(BATCHES[name](0, S)), S)
    for first, n in ((0, 1), (2, 2), (S - 1, 1)):
        some, after = split(bits(BATCHES[name](first, n)), n)
        assert np.array_equal(some, outputs[first : first + n])
        assert np.array_equal(after, states[first : first + n])


# --- spans that are none --------------------------------------------------------------------------

LAST = (1 << 31) - 1
BAD = {(0, 0): 0, (2, -5): -5, (-1, 2): -1, (5, 3): 5, (LAST, 1): LAST, (0, LAST): 0}


@EACH_SCAN
@pytest.mark.parametrize("span", BAD, ids=str)
def test_a_bad_span_is_an_error(name: str, span: tuple[int, int]) -> None:
    """Which accesses nothing that it must not; the device tells of that."""
    scan = SCANS[name]
    tokens = [values(ne, 7) for ne in scan.tokens]
    with pytest.raises(IndexOutOfRange, match=f"index {BAD[span]} is out of range"):
        scanned(scan, tokens, values(scan.state, 3), [(0, 3), span, (3, 4)])
