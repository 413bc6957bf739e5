"""Kernels of recurrent layers, convolutions and pooling on the emulated device: counts of a run,
sizes that are not in the table, bits that do not depend on the batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.kernels import convolution
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.checks import check_case
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.sched.executable import Executable
from tests.counted import PATTERN, Build, Leaves, Numbers

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

DEVICE = CudaBackend(EmulatedDriver())
RNG = np.random.default_rng(0)


def floats(*ne: int) -> Tensor:
    return from_numpy(RNG.uniform(-1, 1, ne[::-1]).astype(np.float32))


def bits(y: Tensor) -> NDArray[np.uint32]:
    executable = Executable(Graph(y), [DEVICE])
    executable.run()
    return np.ascontiguousarray(executable.read(y)).view(np.uint32)


# --- counts that a run sets -----------------------------------------------------------------------

# T tokens, S sequences; heads of 12 elements, which are no power of two
ONES = (1, 1, 1, 1, 1, 1)  # strides, paddings and dilations


def _tokens(leaf: Leaves, names: str, *ne: int) -> list[Tensor]:
    return [leaf.floats(name, *ne) for name in names]


# T tokens, S sequences; 3 heads of 12 elements, which are no power of two


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


BUILDS: dict[str, Build] = {
    "gated linear attention": _gated,
    "RWKV-6": _rwkv_6,
    "RWKV-7": _rwkv_7,
    "the delta rule": _delta_rule_of(1, 2, False),
    "sequences of the delta rule": _delta_rule_of(12, 4, True),
    "the scan": lambda leaf, n: [
        ops.ssm_scan(
            leaf.floats("s", 12, 5, 3, 4),
            leaf.floats("x", 5, 3, n.T, 2),
            leaf.floats("dt", 3, n.T, 2),
            leaf.floats("A", 12, 3),
            leaf.floats("B", 12, 1, n.T, 2),
            leaf.floats("C", 12, 1, n.T, 2),
            leaf.ids("ids", 4, 2),
            2,
        )
    ],
    "sequences of a scan": lambda leaf, n: [
        ops.ssm_scan(
            leaf.floats("s", 12, 5, 3, 4),
            leaf.floats("x", 5, 3, 2, n.S),
            leaf.floats("dt", 3, 2, n.S),
            leaf.floats("A", 1, 3),
            leaf.floats("B", 12, 1, 2, n.S),
            leaf.floats("C", 12, 1, 2, n.S),
            leaf.ids("ids", 4, n.S),
        )
    ],
    "short convolutions": lambda leaf, n: [
        ops.ssm_conv(leaf.floats("x", 2 + n.T, 37), leaf.floats("k", 3, 37)),
        ops.ssm_conv(
            leaf.floats("c", 37, 9), leaf.floats("k", 3, 37), taps=leaf.ids("taps", 9, 3, n.T)
        ),
    ],
    "the indexer": lambda leaf, n: [
        ops.lightning_indexer(
            leaf.floats("q", 12, 5, n.T),
            leaf.floats("k", 12, 1, n.S),
            leaf.floats("w", 5, n.T),
            leaf.mask("mask", n.S, n.T, 1, 1),
        )
    ],
    "hyper-connections": lambda leaf, n: [
        ops.dsv4_hc_comb(
            leaf.floats("mixes", 15, n.T), leaf.floats("a", 3), leaf.floats("b", 15), 1e-3, 3
        ),
        ops.dsv4_hc_pre(leaf.floats("x", 37, 3, n.T), leaf.floats("w", 3, n.T)),
        ops.dsv4_hc_post(
            leaf.floats("h", 37, n.T), leaf.floats("x", 37, 3, n.T), leaf.floats("w", 3, n.T), None
        ),
    ],
    "convolutions": lambda leaf, n: [
        ops.conv_2d_direct(leaf.floats("k", 3, 3, 2, 5), leaf.floats("x", 7, 5, 2, n.T), *ONES),
        ops.conv_2d_dw_direct(leaf.floats("d", 3, 3, 1, 2), leaf.floats("i", 7, 5, 2, n.T), *ONES),
        ops.im2col(leaf.floats("o", 3, 2), leaf.floats("y", 7, 2, n.T), *ONES, False, "f16"),
        ops.conv_transpose_1d(leaf.floats("t", 3, 5, 2), leaf.floats("l", n.T, 2), 2, 0, 1),
    ],
    "pooling and systems": lambda leaf, n: [
        ops.pool_2d(leaf.floats("x", 7, 5, 2, n.T), 0, 3, 2, 2, 1, 1, 1),
        ops.pool_1d(leaf.floats("l", n.T, 3), 1, 3, 1, 1),
        ops.solve_tri(leaf.floats("a", 5, 5, n.T), leaf.floats("b", 3, 5, n.T), True, True, False),
    ],
}  # fmt: skip


def run(build: Build, numbers: Numbers, runs: list[Numbers]) -> list[list[bytes]]:
    """The elements of the results of each run. Asserts that nothing is written past them."""
    leaves = Leaves("f32")
    results = build(leaves, numbers)
    executable = Executable(Graph(*results), [DEVICE])
    found = []
    for one in runs:
        leaves.fill(one.counts)
        for y in results:
            place = executable.place(y)
            pattern = np.full(y.spec.n_bytes, PATTERN, np.uint8)
            place.buffer.write(place.offset, pattern)
        executable.set_counts({symbol: one.counts[symbol] for symbol in executable.symbols})
        executable.run()
        for y in results:
            place = executable.place(y)
            raw = place.buffer.read(place.offset, y.spec.n_bytes).copy()
            element_view(raw, y.spec.at(one.counts)).view(np.uint8)[...] = PATTERN
            assert (raw == PATTERN).all(), f"{y} past its counts"
        found.append([executable.read(y).tobytes() for y in results])
    return found


@pytest.mark.parametrize("name", BUILDS)
def test_counts_of_a_run(name: str) -> None:
    symbolic = Numbers.bounded(9)
    runs = [symbolic.having(n) for n in (9, 1, 4, 7)]
    counted = run(BUILDS[name], symbolic, runs)
    for n, got in zip((9, 1, 4, 7), counted, strict=True):
        exact = Numbers.plain(n)
        assert [got] == run(BUILDS[name], exact, [exact]), f"{n} of 9 tokens"


# --- sizes that take other paths than those of the table ------------------------------------------


def _wkv(op: str, n: int) -> Case:
    token, state = (n, 1, 3), (n * n, 1)
    return Case(op, ne=[*[token] * (6 if op == "rwkv_wkv7" else 3), state][:7])


def _delta(n: int, gate: int) -> Case:
    token, one = (n, 2, 3, 1), (1, 2, 3, 1)
    ne = [(n, 1, 3, 1)] * 2 + [token, (gate, 2, 3, 1), one, (n, n, 2, 1)]
    return Case("gated_delta_net", ne=ne)


SIZES = [
    # heads whose teams are blocks of several warps
    *(_wkv("rwkv_wkv7", n) for n in (257, 300, 520)),
    *(_delta(n, gate) for n in (257, 300) for gate in (1, n)),
    Case("gated_linear_attn", ne=[(300, 2, 4)] * 4 + [(180_000, 2)], scale=0.5),
    Case("ssm_scan", types=("f32",) * 6 + ("i32",),
         ne=[(300, 3, 2, 2), (3, 2, 4, 2), (2, 4, 2), (300, 2), *[(300, 1, 4, 2)] * 2, (2,)]),
    # mixing matrices of one stream, and of more than a warp has lanes
    *(Case("dsv4_hc_comb", ne=[((2 + c) * c, 5), (5,), ((2 + c) * c,)], eps=1e-3, n_iter=3)
      for c in (1, 40, 100)),
]  # fmt: skip


@pytest.mark.parametrize("case", SIZES, ids=lambda case: str(case.id))
def test_sizes(case: Case) -> None:
    assert check_case(case, DEVICE) == ""


@pytest.mark.parametrize("type", ["f32", "f16"])
def test_bits_do_not_depend_on_the_tile(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = ops.cast(floats(3, 3, 5, 70), type), floats(33, 9, 5, 2)
    small = bits(ops.conv_2d_direct(kernel, x, 1, 1, 1, 1, 1, 1))
    monkeypatch.setattr(convolution, "_BLOCKS_PER_SM", 0)
    large = bits(ops.conv_2d_direct(kernel, x, 1, 1, 1, 1, 1, 1))
    assert np.array_equal(small, large)


# --- bits that do not depend on the batch ---------------------------------------------------------

D, H, T, S = 20, 3, 4, 5
TOKENS = [floats(D, H, T, S) for _ in range(6)]
FIRST = floats(D, H)
STATES = floats(D, D, H, S)


def _part(x: Tensor, first: int, n: int) -> Tensor:
    return ops.cont(ops.view_4d(x, *x.ne[:3], n, *x.nb[1:], first * x.nb[3]))


def _flat(make: Callable[..., Tensor], n_rows: int) -> Callable[[int, int], Tensor]:
    """An op whose sequences follow one another in the tokens."""

    def build(first: int, n: int) -> Tensor:
        rows = [ops.reshape_3d(_part(x, first, n), D, H, T * n) for x in TOKENS[:n_rows]]
        return make(*rows, ops.reshape_2d(_part(STATES, first, n), D * D * H, n))

    return build


def _delta_rule(first: int, n: int) -> Tensor:
    q, k, v, g = (_part(x, first, n) for x in TOKENS[:4])
    beta = ops.cont(ops.view_4d(g, 1, H, T, n, *g.nb[1:], 0))
    return ops.gated_delta_net(q, k, v, g, beta, _part(STATES, first, n))


BATCHES: dict[str, Callable[[int, int], Tensor]] = {
    "gated_linear_attn": _flat(lambda k, v, q, g, s: ops.gated_linear_attn(k, v, q, g, s, 0.5), 4),
    "rwkv_wkv6": _flat(
        lambda k, v, r, td, s: ops.rwkv_wkv6(k, v, r, FIRST, td, s), 4
    ),
    "rwkv_wkv7": _flat(ops.rwkv_wkv7, 6),
    "gated_delta_net": _delta_rule,
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_a_sequence_has_the_bits_that_it_has_alone(name: str) -> None:
    def parts(found: NDArray[np.uint32], n: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        flat = found.reshape(-1)
        return flat[: D * H * T * n].reshape(n, -1), flat[D * H * T * n :].reshape(n, -1)

    outputs, states = parts(bits(BATCHES[name](0, S)), S)
    for first, n in ((0, 1), (2, 2), (S - 1, 1)):
        some, after = parts(bits(BATCHES[name](first, n)), n)
        assert np.array_equal(some, outputs[first : first + n])
        assert np.array_equal(after, states[first : first + n])
