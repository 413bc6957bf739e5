"""What tests of fused kernels share: graphs with and without passes, and what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Places
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.sched.executable import Executable
from tests.cpu.conftest import PRODUCT_ISAS, VECTOR_ISAS
from tests.cpu.products import weight_bytes

RNG = np.random.default_rng(0)
EACH_ISA = pytest.mark.parametrize("isa", PRODUCT_ISAS)
EACH_VECTOR_ISA = pytest.mark.parametrize("isa", VECTOR_ISAS)
GLU: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swiglu": ops.swiglu_split,
    "geglu": ops.geglu_split,
    "geglu_erf": ops.geglu_erf_split,
    "geglu_quick": ops.geglu_quick_split,
    "reglu": ops.reglu_split,
    "swiglu_oai": lambda a, b: ops.swiglu_oai(a, b, 1.702, 7.0),
}


class Recording(CpuBackend):
    """Remembers which kernels its plans run."""

    def __init__(
        self, n_threads: int = 1, isa: str | None = None, *, share_activations: bool = True
    ) -> None:
        super().__init__(n_threads, isa, share_activations=share_activations)
        self.kernels: list[str] = []

    def plan(self, steps: Sequence[Step], places: Places) -> CpuPlan:
        made = super().plan(steps, places)
        self.kernels += made.kernels
        return made


def kernels(outputs: Sequence[Tensor], passes: str | Iterable[str] = "all") -> list[str]:
    """What a plan of the outputs runs."""
    backend = Recording()
    Executable(Graph(*outputs), [backend, ReferenceBackend()], passes=passes)
    return backend.kernels


def run(
    outputs: Sequence[Tensor], passes: str | Iterable[str], backend: Recording
) -> tuple[list[bytes], list[str]]:
    """The outputs' bytes and the kernels that were run; state leaves are empty before."""
    graph = Graph(*outputs)
    for leaf in graph.leafs:
        if Flag.STATE in leaf.flags:
            assert leaf.place is not None
            leaf.place.host_bytes[:] = 0
    executable = Executable(graph, [backend], passes=passes)
    executable.run()
    executable.run()  # what the first run left in memory must not matter
    return [executable.raw(y).tobytes() for y in outputs], backend.kernels


def check(
    isa: str,
    passes: str | Iterable[str],
    outputs: Sequence[Tensor],
    *,
    before: Sequence[str],
    after: Sequence[str],
    share_activations: bool = False,
) -> None:
    """Kernels before and after, and the same bits from any number of threads.

    Before is without passes and without activations that products share.
    """
    want, plain = run(outputs, "none", Recording(1, isa, share_activations=False))
    assert plain == list(before)
    for n_threads in (1, 3):
        backend = Recording(n_threads, isa, share_activations=share_activations)
        got, fused = run(outputs, passes, backend)
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


def gated(type: str, op: str, k: int, m: int, x: Tensor, *batch: int) -> Tensor:
    gate, up = (ops.mul_mat(weight(type, k, m, *batch), x) for _ in range(2))
    return GLU[op](gate, up)
