"""A backend with memory of its own, and a model that runs on it.

python examples/a_backend_of_your_own.py [model.gguf]

The device stores its bytes in a bytearray and computes with the ops' numpy references, so this file
shows the interface alone. It has no `takes_counts` and no `Plan.set_counts`, so a plan is built for
each combination of lengths of a batch. `backends/mock` has both, and a queue that delays work, and
checks the order of accesses.
"""

import itertools
import sys
from collections.abc import Sequence

import numpy as np

import ggmlpy
from ggmlpy.backends.base import Backend, Places, Plan
from ggmlpy.backends.reference import run_node
from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import Buffer, BufferType, Bytes
from ggmlpy.runtime.context import Context

addresses = itertools.count(1 << 48, 1 << 40)  # of the device; the host never dereferences them


class DeviceMemory(BufferType):
    """A kind of memory. `is_host=False`: numpy cannot see it."""

    def __init__(self) -> None:
        super().__init__("toy", "toy", is_host=False, alignment=64, max_bytes=1 << 30)

    def _allocate(self, n_bytes: int) -> Buffer:
        return DeviceBuffer(self, n_bytes)


class DeviceBuffer(Buffer):
    """Only `read` and `write` are required: the other methods of Buffer use them."""

    def __init__(self, type: BufferType, n_bytes: int) -> None:
        super().__init__(type, n_bytes, next(addresses))
        self.cells = bytearray(n_bytes)

    def read(self, offset: int, n_bytes: int) -> Bytes:
        return np.frombuffer(bytes(self.cells[offset : offset + n_bytes]), np.uint8)

    def write(self, offset: int, data: Bytes) -> None:
        self.cells[offset : offset + data.nbytes] = data.tobytes()


class ToyBackend(Backend):
    """Supports most ops. Weights and states are placed in its memory without further code.

    The others run on the next backend, which gets copies of what they read.
    """

    name = "toy"

    def __init__(self) -> None:
        self.buffer_type = DeviceMemory()

    def supports(self, node: ggmlpy.Tensor) -> bool:
        return node.op is not None and node.op.name not in (
            "get_rows",
            "flash_attn_ext",
        )

    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        return ToyPlan([step.node for step in steps], places)


class ToyPlan(Plan):
    """Nodes in running order, and the places of what they read and write."""

    def __init__(self, nodes: list[ggmlpy.Tensor], places: Places) -> None:
        self.nodes, self.places = nodes, places

    def submit(self) -> None:
        for node in self.nodes:
            run_node(node, self.device_bytes)

    def device_bytes(self, tensor: ggmlpy.Tensor) -> tuple[Bytes, int]:
        place = self.places[tensor]
        assert isinstance(place.buffer, DeviceBuffer)
        return np.frombuffer(place.buffer.cells, np.uint8), place.offset


path = sys.argv[1] if len(sys.argv) > 1 else ggmlpy.packaged_model()
toy = Context.open(path, backend=[ToyBackend(), "cpu"], n_ctx=64)
cpu = Context.open(path, backend="cpu", n_ctx=64)
logits = [context.decode([1, 5, 9, 13])[0] for context in (toy, cpu)]
print(toy.placement)
for name, ops in toy.ops_by_backend().items():
    print(f"{name} runs {ops.total()} nodes: {', '.join(f'{n} {op}' for op, n in ops.items())}")
error = ((logits[0] - logits[1]) ** 2).sum() / (logits[1] ** 2).sum()
print(f"its logits differ from those of the cpu, which rounds activations to int8, by {error:.1e}")
