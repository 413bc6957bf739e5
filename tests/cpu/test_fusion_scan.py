"""The fused kernels of scans whose states are rows of a table: the same bits wherever these lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cpu.kernel import entry_of
from ggmlpy.backends.cpu.kernels import linear_attention, recurrent, scan
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import Flag, Tensor, from_numpy
from tests.cpu.conftest import ISAS, VECTOR_ISAS, jit_for
from tests.cpu.fused import EACH_VECTOR_ISA, Recording, run

N_ROWS = 6
Scan = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]  # table, ids, spans, D, H -> y


def table(n: int) -> Tensor:
    values = np.random.default_rng(n).uniform(-1, 1, (N_ROWS, n)).astype(np.float32)
    leaf = from_numpy(values)
    leaf.flags |= Flag.STATE
    return leaf


def _ssm_scan(per_state: bool) -> Scan:
    def made(rows: Tensor, ids: Tensor, spans: Tensor, D: int, H: int) -> Tensor:
        T, G = n_tokens(spans), H
        N = rows.ne[0] // (D * H)
        states = ops.reshape_4d(rows, N, D, H, N_ROWS)
        x, dt, B, C = uniform(D, H, T), uniform(H, T), uniform(N, G, T), uniform(N, G, T)
        rates = decays(N if per_state else 1, H)
        return ops.ssm_scan(states, x, dt, rates, B, C, ids, spans=spans)

    return made


def _delta_net(per_element: bool) -> Scan:
    def made(rows: Tensor, ids: Tensor, spans: Tensor, D: int, H: int) -> Tensor:
        T, R = n_tokens(spans), ids.ne[0]
        q, k, v, beta = uniform(D, H, T), uniform(D, H, T), uniform(D, H, T), shares(1, H, T)
        decay = decays(D if per_element else 1, H, T)
        state = ops.reshape_4d(ops.get_rows(rows, ids), D, D, H, R)
        return ops.gated_delta_net(q, k, v, decay, beta, state, spans=spans)

    return made


def _wkv(name: str, n_sources: int) -> Scan:
    def made(rows: Tensor, ids: Tensor, spans: Tensor, D: int, H: int) -> Tensor:
        T = n_tokens(spans)
        sources = [uniform(D, H, T) for _ in range(n_sources)]
        if name == "rwkv_wkv6":
            sources[3] = uniform(D, H)
        scale = [0.5] if name == "gated_linear_attn" else []
        state = ops.get_rows(rows, ids)
        y: Tensor = getattr(ops, name)(*sources, state, *scale, spans=spans)
        return y

    return made


SCANS: dict[str, Scan] = {
    "ssm_scan_of_heads": _ssm_scan(False),
    "ssm_scan_of_states": _ssm_scan(True),
    "gated_delta_net_of_heads": _delta_net(False),
    "gated_delta_net_of_elements": _delta_net(True),
    "gated_linear_attn": _wkv("gated_linear_attn", 4),
    "rwkv_wkv6": _wkv("rwkv_wkv6", 5),
    "rwkv_wkv7": _wkv("rwkv_wkv7", 6),
}


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """All at once, on all cores: one at a time they take long."""
    found = []
    for name in SCANS:
        module = linear_attention if name.startswith(("gated_delta", "rwkv")) else recurrent
        module = scan if name.startswith("ssm") else module
        found += [entry_of(module.__name__, f"{name}{form}") for form in ("_listed", "_stored")]
    for isa in VECTOR_ISAS:
        jit_for(isa).load(found)


EACH_SCAN = pytest.mark.parametrize("name", SCANS)
LENGTHS = (2, 1, 3)  # tokens of each sequence
RNG = np.random.default_rng(5)


def uniform(*ne: int) -> Tensor:
    return from_numpy(RNG.uniform(-0.7, 0.7, ne[::-1]).astype(np.float32))


def decays(*ne: int) -> Tensor:
    """Not above 0: with others the states of thousands of tokens would not be finite."""
    return from_numpy(RNG.uniform(-0.7, 0, ne[::-1]).astype(np.float32))


def shares(*ne: int) -> Tensor:
    """Not below 0, likewise."""
    return from_numpy(RNG.uniform(0, 0.7, ne[::-1]).astype(np.float32))


def n_tokens(spans: Tensor) -> int:
    return int(spans.numpy().reshape(-1, 2)[:, 1].sum())


def stored(
    name: str,
    ids: Sequence[int],
    to: Sequence[int],
    D: int = 20,
    H: int = 3,
    lengths: Sequence[int] = LENGTHS,
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, the table as it is after the new states are written to it, and its leaf."""
    R = len(ids)
    n = (24 if name.startswith("ssm") else D) * D * H
    rows = table(n)
    first = np.cumsum([0, *lengths])[:R]
    spans = from_numpy(np.stack([first, lengths[:R]], axis=1).astype(np.int32))
    y = SCANS[name](rows, from_numpy(np.array(ids, np.int32)), spans, D, H)
    T = n_tokens(spans)
    after = ops.view_2d(y, n, R, n * 4, D * H * T * 4)
    written = ops.set_rows(rows, after, from_numpy(np.array(to, np.int32)))
    return ops.view_2d(y, D * H, T, D * H * 4, 0), written, rows


def results(
    name: str,
    ids: Sequence[int],
    to: Sequence[int],
    backend: Recording,
    passes: str,
    D: int = 20,
    lengths: Sequence[int] = LENGTHS,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    global RNG
    RNG = np.random.default_rng(9)
    y, written, _ = stored(name, ids, to, D, lengths=lengths)
    made, kernels = run([written, ops.cont(y)], passes, backend)
    is_fused = [kernel == f"{name}_stored" for kernel in kernels]
    assert is_fused.count(True) == (passes == "scan"), kernels
    return np.frombuffer(made[0], np.float32), np.frombuffer(made[1], np.float32)


CASES = {
    "where they are": ((4, 0, 2), (4, 0, 2)),
    "to free rows": ((4, 0, 2), (1, 3, 5)),
    "one row read by all": ((2, 2, 2), (2, 0, 1)),
    "one row read by all, written by the last": ((2, 2, 2), (1, 0, 2)),
    "round": ((0, 1, 2), (1, 2, 0)),
    "one row written by all": ((0, 1, 2), (4, 4, 4)),
    "one row read by one, written by the others": ((4, 1, 2), (0, 4, 4)),
    "alone": ((3,), (3,)),
}


@EACH_SCAN
@pytest.mark.parametrize("case", CASES)
def test_states_in_rows_have_the_bits_of_the_separate_nodes(name: str, case: str) -> None:
    ids, to = CASES[case]
    for isa in VECTOR_ISAS[:1]:
        expected = results(name, ids, to, Recording(1, isa), "none")
        assert np.abs(expected[0]).max() > 0
        for n_threads in (1, 2, 3):
            for found, wanted in zip(
                results(name, ids, to, Recording(n_threads, isa), "scan"), expected, strict=True
            ):
                assert found.tobytes() == wanted.tobytes()


@EACH_SCAN
def test_the_last_sequence_that_writes_a_row_counts(name: str) -> None:
    """It has fewer tokens than the one before, which a thread for each would finish later."""
    rows, lengths = ((0, 1), (4, 4)), (5000, 2500)
    expected = results(name, *rows, Recording(1, ISAS[0]), "none", lengths=lengths)
    found = results(name, *rows, Recording(2, ISAS[0]), "scan", lengths=lengths)
    assert expected[0].any() and all(np.isfinite(x).all() for x in expected)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]


@EACH_SCAN
@EACH_VECTOR_ISA
def test_whole_vectors_and_blocks(name: str, isa: str) -> None:
    """Heads of 64: four rows and 64 columns at a time, several blocks of a head."""
    for case in ("where they are", "round"):
        ids, to = CASES[case]
        expected = results(name, ids, to, Recording(1, isa), "none", 64)
        found = results(name, ids, to, Recording(2, isa), "scan", 64)
        assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]


@EACH_SCAN
@pytest.mark.parametrize("bad", [-1, N_ROWS])
def test_a_bad_row_to_write_to_stores_nothing(name: str, bad: int) -> None:
    y, written, rows = stored(name, (0, 1, 2), (0, bad, 2))
    with pytest.raises(IndexOutOfRange, match=f"index {bad} "):
        run([written, y], "scan", Recording(2, ISAS[0]))
    assert rows.place is not None
    assert not rows.place.host_bytes.any()  # as `run` begins


@EACH_SCAN
@pytest.mark.parametrize("bad", [-1, N_ROWS])
def test_a_bad_row_to_read_is_an_error(name: str, bad: int) -> None:
    y, written, _ = stored(name, (0, bad, 2), (0, 1, 2))
    with pytest.raises(IndexOutOfRange, match=f"index {bad} "):
        run([written, y], "scan", Recording(2, ISAS[0]))
