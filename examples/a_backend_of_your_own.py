"""A complete backend with memory of its own, tested by the suite, and a model that runs on it.

    python examples/a_backend_of_your_own.py [model.gguf]

Only `ToyPlan` sees the device's memory, a bytearray. docs/backends.md explains each part.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

import ggmlpy
from ggmlpy.backends.base import Backend, Places, Plan
from ggmlpy.backends.step import Step
from ggmlpy.conformance import Status, Subject, all_tests, run_tests
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes
from ggmlpy.graph.spec import Spec

F32 = NDArray[np.float32]
addresses = itertools.count(1 << 48, 1 << 40)  # of the device; the host never dereferences them


class ToyMemory(BufferType):
    """A kind of memory. `is_host=False`: numpy cannot see it."""

    def __init__(self) -> None:
        super().__init__("toy", "toy", is_host=False, alignment=64, max_bytes=1 << 30)

    def _allocate(self, n_bytes: int) -> Buffer:
        return ToyBuffer(self, n_bytes)


class ToyBuffer(Buffer):
    """Only `read` and `write` are required: the other methods of Buffer use them."""

    def __init__(self, type: BufferType, n_bytes: int) -> None:
        super().__init__(type, n_bytes, next(addresses))
        self.cells = bytearray(n_bytes)

    def read(self, offset: int, n_bytes: int) -> Bytes:
        return np.frombuffer(bytes(self.cells[offset : offset + n_bytes]), np.uint8)

    def write(self, offset: int, data: Bytes) -> None:
        self.cells[offset : offset + data.nbytes] = data.tobytes()


def tiled(b: F32, shape: tuple[int, ...]) -> F32:
    """ggml's broadcast: whole copies of b fill the shape."""
    return np.tile(b, [n // m for n, m in zip(shape, b.shape, strict=True)])


def product(w: F32, x: F32) -> NDArray[np.float64]:
    """y[n, m] = sum_k x[n, k] w[m, k], row by row of x: the bits do not depend on the batch."""
    for axis in (0, 1):  # heads of x share those of w in groups
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    rows = [(w * np.float64(x[:, :, i : i + 1])).sum(-1) for i in range(x.shape[2])]
    return np.stack(rows, axis=2)


OPS: dict[str, Callable[..., NDArray[np.floating]]] = {  # of the op and its sources, rows last
    "add": lambda op, a, b: a + tiled(b, a.shape),
    "mul": lambda op, a, b: a * tiled(b, a.shape),
    "mul_mat": lambda op, w, x: product(w, x),
    "set_rows": lambda op, x, ids, cache: op.reference(x, ids, cache),  # K and V lie where it runs
}


class ToyBackend(Backend):
    """Nodes that it does not support run on the next backend, on copies of what they read."""

    name = "toy"

    def __init__(self) -> None:
        self.buffer_type = ToyMemory()

    def supports(self, node: ggmlpy.Tensor) -> bool:
        return node.op is not None and node.op.name in OPS

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        return ToyPlan([step.node for step in steps], places)


class ToyPlan(Plan):
    """Nodes in running order, and the places of what they read and write."""

    def __init__(self, nodes: list[ggmlpy.Tensor], places: Places) -> None:
        self.nodes, self.places = nodes, places

    def submit(self) -> None:
        for node in self.nodes:
            assert node.op is not None
            sources = [read_array(*self.at(source)) for source in node.src]
            try:
                result = OPS[node.op.name](node.op, *sources)
            except ggmlpy.IndexOutOfRange as error:
                raise ggmlpy.IndexOutOfRange(f"{node.name}: {error}") from None
            write_array(*self.at(node), result, node.op.written_rows(*sources))

    def at(self, tensor: ggmlpy.Tensor) -> tuple[Bytes, Spec, int]:
        """The device's memory, and how the tensor lies in it."""
        place = self.places[tensor]
        assert isinstance(place.buffer, ToyBuffer)
        return np.frombuffer(place.buffer.cells, np.uint8), tensor.spec, place.offset


np.seterr(over="ignore", invalid="ignore")  # inf and nan are results like others
tests = [test for test in all_tests() if any(op in test.id for op in OPS)]
results = list(run_tests(tests, Subject(ToyBackend())))
failures = [f"\n{r.id}: {r.message}" for r in results if r.status is Status.FAIL]
print("conformance:", dict(Counter(r.status.value for r in results)), *failures)
path = sys.argv[1] if len(sys.argv) > 1 else ggmlpy.packaged_model()
toy = ggmlpy.Context.open(path, backend=[ToyBackend(), "cpu"], n_ctx=64)
print(f"the next token is {toy.decode([1, 5, 9, 13])[0].argmax()}; {toy.placement}")
print({name: ops.total() for name, ops in toy.ops_by_backend().items()}, "nodes by backend")
