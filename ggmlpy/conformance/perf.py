"""How fast a backend runs single ops of the shapes that models have.

A measurement repeats the plan of one node for half a second and takes the median run. It is
compared with two ceilings of the machine: the bytes a second that memory delivers, and the
multiply-adds of numpy's f32 product.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.run import Prepared, computing, unsupported
from ggmlpy.graph.tensor import Tensor

_SECONDS = 0.5
_MODEL = 2048  # columns of a 1B model
_KV = (64, 4096, 8, 1)

CASES: list[Case] = [
    *(
        Case("mul_mat", ne=[(_MODEL, 8192), (_MODEL, n)], types=(t, "f32"))
        for t in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl")
        for n in (1, 512)
    ),
    *(
        Case("mul_mat_id", ne=[(_MODEL, 1024, 8), (_MODEL, 1, n), (2, n)],
             types=("q4_0", "f32", "i32"))
        for n in (1, 64)
    ),
    *(
        Case("flash_attn_ext", ne=[(64, n, 32, 1), _KV, _KV, (4096, n)],
             types=("f32", t, t, "f16"), mask="causal")
        for t in ("f16", "q8_0")
        for n in (1, 128)
    ),
    *(Case("rms_norm", ne=[(_MODEL, n)], eps=1e-5) for n in (1, 512)),
    *(Case(op, ne=[(_MODEL, 512), (_MODEL, 1)]) for op in ("add", "mul")),
    Case("swiglu_split", ne=[(8192, 512), (8192, 512)]),
    Case("soft_max", ne=[(4096, 32, 32)]),
    Case("rope_ext", ne=[(64, 32, 512)], mode=0),
    *(Case("set_rows", ne=[(512, 4096), (512, 512), (512,)], types=(t, "f32", "i64"))
      for t in ("f16", "q8_0")),
    Case("get_rows", ne=[(_MODEL, 32_000), (512,)], types=("q4_0", "i32")),
    Case("cpy", ne=[(_MODEL, 512), (_MODEL, 512)], types=("f32", "f16")),
    Case("cont", ne=[(64, 512, 32)], layouts=("permuted",)),
    Case("argsort", ne=[(32_000, 4)], order=1),
    Case("conv_2d_direct", ne=[(3, 3, 64, 64), (64, 64, 64, 1)], types=("f32", "f32"),
         s0=1, s1=1, p0=1, p1=1, d0=1, d1=1),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine delivers: bytes a second, floating-point operations a second."""

    bytes_per_s: float
    flops: float


@dataclass(frozen=True, slots=True)
class Speed:
    """A measured case; `share` of the ceiling that limits it, which `limit` names."""

    id: str
    op: str
    time_us: float
    n_runs: int
    bytes_per_s: float
    flops: float
    limit: str
    share: float


def ceilings(n_threads: int, bytes_per_s: float, size: int = 1536) -> Ceilings:
    """The ceilings, with the bandwidth as it was measured and the best of a few products."""
    a = np.ones((size, size), np.float32)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return Ceilings(bytes_per_s, 2 * size**3 / min(seconds))


def measure(backend: Backend, case: Case, machine: Ceilings) -> Speed | str:
    """The speed of a case; why not, if the backend does not support it."""
    nodes = computing(build(case))
    reason = unsupported(backend, nodes)
    if reason:
        return reason
    run = Prepared(backend, nodes)
    run.run()
    seconds = list(_repeat(run, backend))
    typical = median(seconds)
    n_bytes, n_flops = _traffic(nodes), sum(map(_operations, nodes))
    rates = n_bytes / typical, n_flops / typical
    shares = {"GB/s": rates[0] / machine.bytes_per_s, "GFLOP/s": rates[1] / machine.flops}
    limit = max(shares, key=lambda name: shares[name])
    return Speed(case.id, case.op, typical * 1e6, len(seconds), *rates, limit, shares[limit])


def _repeat(run: Prepared, backend: Backend) -> Iterator[float]:
    """Seconds of each run, for half a second and at least three times."""
    begin = time.perf_counter()
    count = 0
    while count < 3 or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        run.again()
        backend.synchronize()
        yield time.perf_counter() - start
        count += 1


def _traffic(nodes: Sequence[Tensor]) -> int:
    """Bytes that a run reads and writes at least."""
    total = 0
    for node in nodes:
        assert node.op is not None
        name = node.op.name
        sources = list(node.src)
        if name in ("get_rows", "set_rows"):  # only the rows that are named
            rows = node.src[1].spec.n_elements if name == "get_rows" else node.src[0].spec.n_rows
            row_bytes = (node.src[0] if name == "get_rows" else node).spec.row_bytes
            total += rows * row_bytes + (node.spec.n_bytes if name == "get_rows" else 0)
            sources = sources[:1] if name == "set_rows" else []
        else:
            total += node.spec.n_elements // node.type.block_size * node.type.type_size
        for source in sources:
            total += source.spec.n_elements // source.type.block_size * source.type.type_size
    return total


def _operations(node: Tensor) -> int:
    """Floating-point operations of products; others are limited by memory."""
    assert node.op is not None
    if node.op.name in ("mul_mat", "mul_mat_id"):
        return 2 * node.src[0].ne[0] * node.spec.n_elements
    if node.op.name == "flash_attn_ext":
        q, k, v = node.src[:3]
        return 2 * (k.ne[0] + v.ne[0]) * k.ne[1] * q.ne[1] * q.ne[2] * q.ne[3]
    if node.op.name == "conv_2d":
        return 2 * node.src[0].spec.n_elements // node.src[0].ne[3] * node.spec.n_elements
    return 0
