"""Rows that are longer than those of the conformance table: several tiles, chunks, or merges."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.checks import check_case
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import zeros
from ggmlpy.sched.executable import Executable

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

CASES = [
    *(Case(op, ne=[(n, 2, 2)], layouts=(v,), span=(-10, 10), eps=1e-6)
      for op in ("rms_norm", "norm", "l2_norm") for n in (4096, 8198) for v in ("", "0213")),
    *(Case("soft_max_ext", ne=[(8197, 2, 3), (8197, 2)], types=("f32", t), span=(-10, 10),
           scale=0.5, max_bias=3.7, mask="dead", sinks=True) for t in ("f16", "f32")),
    *(Case(op, ne=[(n, 3)]) for op in ("sum", "sum_rows", "mean", "cumsum", "argmax")
      for n in (4096, 4097, 20_000)),
    Case("argmax", ne=[(20_000, 3)], ties=True),
    *(Case("argsort", ne=[(n, 2)], order=o, ties=o == 1) for n in (4097, 20_000) for o in (0, 1)),
    *(Case("top_k", ne=[(n, 2)], k=k, ties=t) for n, k in ((2049, 1), (8193, 1024), (20_000, 64))
      for t in (False, True)),
    Case("top_k", ne=[(9000, 2)], k=1500),
]  # fmt: skip


@pytest.fixture(scope="module")
def device() -> CudaBackend:
    return CudaBackend(EmulatedDriver())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_is_right(device: CudaBackend, case: Case) -> None:
    assert check_case(case, device, (), 0) == ""


SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.5, -2.5]


@pytest.mark.parametrize("n", [40, 3000, 9000])
def test_orders_of_special_values(device: CudaBackend, n: int) -> None:
    x = np.random.default_rng(n).choice(np.array(SPECIAL, np.float32), (2, n))
    leaf = zeros("f32", (n, 2), buffer_type=device.buffer_type)
    assert leaf.place is not None
    leaf.place.buffer.write(leaf.place.offset, x.reshape(-1).view(np.uint8))
    down = np.argsort(-x, axis=-1, kind="stable")
    wanted = {
        ops.argsort(leaf, 0): np.argsort(x, axis=-1, kind="stable"),
        ops.argsort(leaf, 1): down,
        ops.top_k(leaf, 37): down[:, :37],
        ops.argmax(leaf): np.argmax(x, axis=-1),
    }
    executable = Executable(Graph(*wanted), [device])
    executable.run()
    for y, want in wanted.items():
        got = np.frombuffer(executable.raw(y).tobytes(), np.int32)
        assert np.array_equal(got, want.reshape(-1))


def test_a_short_row_has_the_bits_that_it_has_where_rows_may_be_long(device: CudaBackend) -> None:
    n = Symbol("n", 9000)
    long = zeros("f32", (n.count,), buffer_type=device.buffer_type)
    x = np.random.default_rng(0).standard_normal(9000).astype(np.float32)
    assert long.place is not None
    long.place.buffer.write(long.place.offset, x.view(np.uint8))
    for op in (ops.soft_max, ops.sum_rows, ops.cumsum, lambda x: ops.rms_norm(x, 1e-6)):
        counted = Executable(Graph(of_long := op(long)), [device])
        for length in (77, 700, 4100):
            short = zeros("f32", (length,), buffer_type=device.buffer_type)
            assert short.place is not None
            short.place.buffer.write(short.place.offset, x[:length].view(np.uint8))
            alone = Executable(Graph(of_short := op(short)), [device])
            alone.run()
            counted.set_counts({n: length})
            counted.run()
            want = alone.raw(of_short).tobytes()
            assert counted.raw(of_long).tobytes()[: len(want)] == want
