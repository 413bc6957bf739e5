"""One node on the CPU backend, in memory of its own: nothing around a tensor may change.

y = ops.rms_norm(x, 1e-5)
assert run(y, "avx2", 3).tobytes() == run(y, "avx2", 1, in_place=True).tobytes()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.kernel import Kernel, candidates
from ggmlpy.backends.step import Step
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.arrays import element_view, read_array, row_view
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Tensor
from tests.cpu.conftest import jit_for

_GUARD = 256  # bytes before and after every tensor
_PATTERN = 0xA5


@cache
def backend(isa: str, n_threads: int) -> CpuBackend:
    return CpuBackend(n_threads, isa)


class Watched:
    """A copy of some bytes between guards; `misalign` moves it off the cache line."""

    def __init__(self, data: NDArray[np.uint8], misalign: int) -> None:
        self.before = data.copy()
        self.raw = np.full(_GUARD + misalign + data.nbytes + _GUARD, _PATTERN, np.uint8)
        start = _GUARD + misalign
        self.bytes = self.raw[start : start + data.nbytes]
        self.bytes[:] = data
        self.start = start
        self.buffer = HostBuffer(self.raw)

    def place(self, offset: int = 0) -> Place:
        return Place(self.buffer, self.start + offset)

    def check_guards(self) -> None:
        assert (self.raw[: self.start] == _PATTERN).all(), "bytes before a tensor changed"
        after = self.raw[self.start + self.bytes.nbytes :]
        assert (after == _PATTERN).all(), "bytes after a tensor changed"

    def check_unchanged(self, besides: Spec | None = None, offset: int = 0) -> None:
        """No byte changed, unless it belongs to an element of `besides`."""
        changed = self.bytes != self.before
        if besides is not None:
            mine = np.zeros(self.bytes.nbytes, np.uint8)
            if besides.type.is_quantized or besides.rows_contiguous:
                row_view(mine, besides, offset)[...] = 1
            else:
                ones = np.full(besides.type.type_size, 1, np.uint8)
                elements = element_view(mine, besides, offset)
                elements[...] = ones.view(elements.dtype)[0]
            changed &= mine == 0
        assert not changed.any(), f"byte {np.argmax(changed)} of a source changed"


def computing(y: Tensor) -> list[Tensor]:
    """The nodes of y's graph that run."""
    return [n for n in Graph(y).nodes if n.op is not None and n.op.computes]


def supported(y: Tensor, isa: str) -> bool:
    return all(backend(isa, 1).supports(node) for node in computing(y))


def compile_together(isa: str, nodes: Iterable[Tensor]) -> None:
    """Compiles what the nodes need into the disk cache: one at a time takes many times as long."""
    kernels = [kernel_of(node, isa) for y in nodes for node in computing(y)]
    jit_for(isa).load(dict.fromkeys(kernel for kernel in kernels if kernel is not None))


def kernel_of(node: Tensor, isa: str) -> Kernel | None:
    assert node.op is not None
    types = tuple(source.type.name for source in node.src)
    found = candidates(node.op.name, types, select(isa))
    return next((kernel for kernel in found if kernel.requires(node)), None)


def can_run_in_place(y: Tensor) -> bool:
    assert y.op is not None
    if not y.op.in_place or not y.src:
        return False
    alone = sum(source.root is y.src[0].root for source in y.src) == 1
    return alone and y.spec.same_layout(y.src[0].spec)


def run(
    y: Tensor,
    isa: str,
    n_threads: int,
    *,
    in_place: bool = False,
    misalign: int = 0,
    raw: bool = False,
    after_error: Callable[[NDArray[np.uint8]], None] = lambda data: None,
) -> NDArray[Any]:
    """The values of y (its bytes if `raw`), whose only computing node is y itself, guards checked.

    Where the run raises, `after_error` sees the bytes that y should have been written to.
    """
    assert computing(y) == [y]
    assert backend(isa, 1).supports(y), f"{y} has no CPU kernel"
    memory = {s.root: Watched(_leaf_bytes(s.root), misalign) for s in y.src}
    places = {s: memory[s.root].place(s.view_offs) for s in y.src}
    result = None
    if y.view_src is not None:
        places[y] = memory[y.root].place(y.view_offs)
    elif in_place:
        assert can_run_in_place(y)
        places[y] = places[y.src[0]]
    else:
        result = Watched(np.full(y.spec.n_bytes, _PATTERN, np.uint8), misalign)
        places[y] = result.place()
    at = places[y]
    data = at.host_bytes[at.offset : at.offset + y.spec.n_bytes]
    try:
        plan = backend(isa, n_threads).plan([Step.of(y)], places)
        plan.submit()
        plan.check()
    except GgmlpyError:
        after_error(data)
        raise

    for root, watched in memory.items():
        watched.check_guards()
        if y.view_src is root:
            watched.check_unchanged(y.spec, y.view_offs)
        elif in_place and root is y.src[0].root:
            watched.check_unchanged(y.spec, y.src[0].view_offs)
        else:
            watched.check_unchanged()
    if result is not None:
        result.check_guards()
    if raw:
        return data.copy()
    values = read_array(data, y.spec)
    return values.reshape(y.spec.ne[: y.spec.n_dims][::-1])


def _leaf_bytes(root: Tensor) -> NDArray[np.uint8]:
    assert root.place is not None, f"{root} must be a leaf"
    return root.place.host_bytes[: root.spec.n_bytes]
