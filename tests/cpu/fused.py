"""What tests of fusion share: graphs with and without it, and the kernels that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Places
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import Executable
from tests.cpu.conftest import ISAS
from tests.cpu.products import weight_bytes

RNG = np.random.default_rng(0)
EACH_ISA = pytest.mark.parametrize("isa", ISAS)
GLU: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swiglu": ops.swiglu_split,
    "geglu": ops.geglu_split,
    "reglu": ops.reglu_split,
    "swiglu_oai": lambda a, b: ops.swiglu_oai(a, b, 1.702, 7.0),
}


class Recording(CpuBackend):
    """Remembers which kernels its plans run."""

    def __init__(
        self, fusion: str | Iterable[str], n_threads: int = 1, isa: str | None = None
    ) -> None:
        super().__init__(n_threads, isa, fusion)
        self.kernels: list[str] = []

    def plan(
        self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor] | None = None
    ) -> CpuPlan:
        made = super().plan(nodes, places, wanted)
        self.kernels += made.kernels
        return made


def kernels(
    outputs: Sequence[Tensor], fusion: str | Iterable[str] = "all", pin: Pin | None = None
) -> list[str]:
    """What a plan of the outputs runs."""
    backend = Recording(fusion)
    Executable(Graph(*outputs), [backend, ReferenceBackend()], pin)
    return backend.kernels


def run(
    outputs: Sequence[Tensor], fusion: str | Iterable[str], isa: str, n_threads: int
) -> tuple[list[bytes], list[str]]:
    """The outputs' bytes and the kernels that were run; state leaves are empty before."""
    graph = Graph(*outputs)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            assert leaf.place is not None
            leaf.place.host_bytes[:] = 0
    backend = Recording(fusion, n_threads, isa)
    executable = Executable(graph, [backend])
    executable.run()
    executable.run()  # what the first run left in memory must not matter
    return [executable.raw(y).tobytes() for y in outputs], backend.kernels


def check(
    isa: str,
    fusion: str | Iterable[str],
    outputs: Sequence[Tensor],
    *,
    before: Sequence[str],
    after: Sequence[str],
) -> None:
    """Kernels before and after the passes, and the same bits from any number of threads."""
    want, plain = run(outputs, "none", isa, 1)
    assert plain == list(before)
    for n_threads in (1, 3):
        got, fused = run(outputs, fusion, isa, n_threads)
        assert fused == list(after)
        assert got == want


def floats(*ne: int) -> Tensor:
    return from_numpy(RNG.standard_normal(ne[::-1]).astype(np.float32))


def computed(*ne: int) -> Tensor:
    """A node: its memory is given to others after its last use."""
    return ops.neg(floats(*ne))


def weight(type: str, *ne: int) -> Tensor:
    k, *rest = ne
    raw = weight_bytes(type, int(np.prod(rest)), k, seed=len(ne))
    return from_bytes(raw.tobytes(), type, ne)


def normed() -> Tensor:
    return ops.rms_norm(computed(24, 3), 1e-5)


def gated(type: str, op: str, k: int, m: int, x: Tensor, *batch: int) -> Tensor:
    gate, up = (ops.mul_mat(weight(type, k, m, *batch), x) for _ in range(2))
    return GLU[op](gate, up)
