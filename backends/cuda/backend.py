"""The CUDA backend: steps run by kernels on one device, in the order of its stream."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ggmlpy.backends.base import Backend, Event, Places, Weight, upload
from ggmlpy.backends.base import Plan as BackendPlan
from ggmlpy.backends.cuda.builder import PlanBuilder, ScratchPool
from ggmlpy.backends.cuda.driver import Driver, DriverEvent
from ggmlpy.backends.cuda.kernel import kernel_of
from ggmlpy.backends.cuda.memory import CudaMemory, PinnedMemory
from ggmlpy.backends.cuda.plan import CudaPlan
from ggmlpy.backends.rounding import Rounding
from ggmlpy.backends.step import Step
from ggmlpy.errors import BackendError
from ggmlpy.graph.buffer import Buffer, BufferType, HostBuffer, Place
from ggmlpy.graph.tensor import Tensor

# In the environment: wait for each launch, so that an error names the node of the one that failed.
BLOCKING = "GGMLPY_CUDA_BLOCKING"
_OFFLOAD_ROWS = 32  # of a product from which copying its weight to the device pays
_PRODUCTS = ("mul_mat", "mul_mat_id")


class CudaBackend(Backend):
    """Runs whatever the table of kernels holds, on the device of a driver.

    op_offload  copy a weight of the host to the device for a product of many rows, which then has
                the device's bits: the size of a batch decides where it runs
    """

    is_async = True
    takes_counts = True

    def __init__(self, driver: Driver, *, op_offload: bool = False) -> None:
        self._op_offload = op_offload
        self._blocking = os.environ.get(BLOCKING, "") not in ("", "0")
        self.name = driver.name
        self.driver = driver
        self.buffer_type = CudaMemory(driver)
        self.host_buffer_type = PinnedMemory(driver)
        self._pool = ScratchPool(driver)
        self._copied: dict[Buffer, None] = {}  # host memory that queued copies use
        self._error: BackendError | None = None  # found where none could be raised
        self._last: CudaPlan | None = None

    def settings(self) -> str:
        info = self.driver.info
        major, minor = info.capability
        return (
            f"{info.name}, compute capability {major}.{minor}, {info.n_sm} multiprocessors,"
            f" {self.driver.free_bytes() >> 20:,} MB of {info.total_bytes >> 20:,} MB free"
        )

    def supports(self, node: Tensor) -> bool:
        return node.op is not None and kernel_of(Step.of(node)) is not None

    def supports_step(self, step: Step) -> bool:
        return kernel_of(step) is not None

    def rounding(self, node: Tensor) -> Rounding:
        found = kernel_of(Step.of(node)) if node.op is not None else None
        return Rounding.F32 if found is None else found.rounding

    def offload_op(self, node: Tensor) -> bool:
        is_product = node.op is not None and node.op.name in _PRODUCTS
        return self._op_offload and is_product and node.ne[1] >= _OFFLOAD_ROWS

    def load_weights(self, weights: Sequence[Weight]) -> None:
        """Upload weights as the file stores them; one piece is read while another is copied."""
        leaves = [w.leaf for w in weights if not self._holds(w.leaf)]
        try:
            upload(self.buffer_type, leaves, self.host_buffer_type, self._copy_piece)
        finally:  # what was queued uses the pieces
            self.synchronize()

    def _copy_piece(self, target: Place, source: Place, n_bytes: int) -> Event:
        self.driver.copy(target.address, source.address, n_bytes)
        return self.record()

    def plan(self, steps: Sequence[Step], places: Places) -> BackendPlan:
        for tensor in (tensor for step in steps for tensor in step.tensors):
            if places[tensor].buffer.type is not self.buffer_type:
                raise BackendError(
                    f"{tensor} lies in {places[tensor].buffer}, which {self.name} cannot reach"
                )
        builder = PlanBuilder(self.driver, self._pool, places)
        for step in steps:
            found = kernel_of(step)
            assert found is not None, f"{step} was given to a backend that does not support it"
            builder.add(found, step)
        return CudaPlan(self.driver, builder, self._submits, blocking=self._blocking)

    def _submits(self, plan: CudaPlan) -> None:
        self._last = plan

    # --- the queue ---

    def can_copy(self, source: BufferType, target: BufferType) -> bool:
        own = self.buffer_type
        if source is not own and target is not own:
            return False
        other = target if source is own else source
        if isinstance(other, CudaMemory):
            return self.driver.can_copy_from(other.driver)
        return other.is_host

    def copy(self, target: Place, source: Place, n_bytes: int) -> None:
        for place in (target, source):
            if isinstance(place.buffer, HostBuffer):
                self._copied[place.buffer] = None  # until the stream has passed the copy
        self.driver.copy(target.address, source.address, n_bytes)

    def record(self) -> Event:
        return CudaEvent(self, self.driver.record())

    def wait(self, event: Event) -> None:
        if isinstance(event, CudaEvent) and type(event.backend.driver) is type(self.driver):
            self.driver.wait(event.event)
        else:
            event.wait()

    def synchronize(self) -> None:
        error, self._error = self._error, None
        try:
            self.driver.synchronize()
        except BackendError as found:
            error = error or self.explained(found)
        self._copied.clear()
        self._last = None  # it would keep the memory of its model
        if error is not None:
            raise error

    # --- errors ---

    def note(self, error: BackendError) -> None:
        """Keep an error that was found where it must not be raised, for `synchronize`."""
        self._error = self._error or self.explained(error)

    def explained(self, error: BackendError) -> BackendError:
        """The error of a kernel, with the nodes that it may be of: CUDA does not tell which."""
        if self._last is None or not self._last.launches:
            return error
        nodes = [launch.node.name or "node" for launch in self._last.launches]
        which = nodes[0] if len(set(nodes)) == 1 else f"{nodes[0]} to {nodes[-1]}"
        return type(error)(
            f"{error} (the stream ran {which}; with {BLOCKING}=1 the error names the node)"
        )


class CudaEvent(Event):
    """A point in the stream of a device."""

    def __init__(self, backend: CudaBackend, event: DriverEvent) -> None:
        self.backend = backend
        self.event = event

    def wait(self) -> None:
        try:
            self.event.synchronize()
        except BackendError as error:
            self.backend.note(error)
