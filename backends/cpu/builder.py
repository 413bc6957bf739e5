"""Steps to the records of a plan: each kernel's fields filled in from its step.

A field of dtype TENSOR is a result or an operand of the step, by its name. Fields named after a
parameter of the step get its value, `scratch` gets memory that lasts for one step, and the other
fields come from the kernel's `bind`, which may request weights (packed, or as they are stored) and
quantised activations from the builder.

Fields that are counts are noted in `count_fields`: a run may set them (counts.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Places
from ggmlpy.backends.cpu.counts import CountField, count_fields
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import HEADER, TENSOR, Kernel
from ggmlpy.backends.cpu.packing import PackedWeights, Packing
from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import Buffer, HostBuffer, Place, aligned_bytes
from ggmlpy.graph.count import same_counts
from ggmlpy.graph.tensor import Tensor

_COUNTERS: WeakSet[HostBuffer] = WeakSet()  # of all plans, see PlanBuilder.counters


def _clear_counters() -> None:
    """A child may be forked in the middle of a plan, which is completed in the parent only."""
    for buffer in _COUNTERS:
        buffer.data[:] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_counters)


class ScratchPool:
    """Temporary memory shared by all plans of a backend, since one plan runs at a time."""

    def __init__(self) -> None:
        self._buffers: dict[str, HostBuffer] = {}

    def take(self, use: str, n_bytes: int) -> HostBuffer:
        """At least `n_bytes` for one use; it may be the memory returned before."""
        held = self._buffers.get(use)
        if held is None or held.n_bytes < n_bytes:
            held = self._buffers[use] = HostBuffer(aligned_bytes(n_bytes))
        return held


class PlanBuilder:
    """Collects records. `records` and `keep` (the memory they point into) make the plan, which may
    run once `weights` are made."""

    def __init__(
        self,
        places: Places,
        n_threads: int,
        pool: ScratchPool,
        isa: ISA,
        *,
        share_activations: bool = True,
    ) -> None:
        self.n_threads = n_threads
        self.isa = isa
        self.records: list[NDArray[np.void]] = []
        self.kernels: list[Kernel] = []
        self.nodes: list[Tensor] = []  # of each record
        self.count_fields: list[CountField] = []
        self.keep: list[Buffer] = []
        self.weights = PackedWeights()
        self._places = places
        self._pool = pool
        self._shares = share_activations
        self._activations: tuple[Kernel, Place, Tensor, int] | None = None

    def add(self, kernel: Kernel, step: Step) -> None:
        """Append the record by which a kernel runs a step, after records of what it depends on."""
        node = step.node
        assert node.op is not None
        bound = kernel.bind(node, self) if kernel.bind is not None else {}
        tensors = {**step.results, **step.operands}
        self._append(kernel, node, tensors, {**node.op.params(), **bound, **step.params})
        for result in step.results.values():
            self._forget_overwritten(result)

    def packed(self, weight: Tensor, packing: Packing) -> int:
        """Address of the weight as `packing` lays it out, filled when `weights` are made."""
        packed = self.weights.get(weight, self._filled(weight), packing)
        self.keep.append(packed)
        return packed.address

    def _filled(self, weight: Tensor) -> Place:
        """Where the bytes of a weight are now: a copy of it in another place comes with the run."""
        own = weight.root.place
        if own is None or not isinstance(own.buffer, HostBuffer):
            return self._places[weight]
        return Place(own.buffer, own.offset + weight.view_offs)

    def stored(self, weight: Tensor) -> int:
        """Address of the weight as it is, in memory once `weights` are made."""
        place = self._places[weight]
        self.weights.use_stored(weight, place)
        return place.address

    def rows_in_file(self, weight: Tensor) -> tuple[int, int]:
        """The file of a weight whose rows are read from it, and their position; -1 and 0 for those
        that are in memory.

        Rows of floats count as in memory: products use them where they are mapped.
        """
        place = self._places[weight]
        assert isinstance(place.buffer, HostBuffer)
        in_file = place.buffer.file
        if in_file is None or not weight.is_leaf or not weight.type.is_quantized:
            return -1, 0
        self.keep.append(place.buffer)  # which keeps the file open
        return in_file.file.descriptor, in_file.begin + place.offset

    def activations(self, x: Tensor, quantize: Kernel, n_bytes: int) -> int:
        """Address of `x` as `quantize` writes it, [n_bytes], computed once for products in a row
        (for each of them if activations are not to be shared).

        The kernel's record has one operand, `x`, and a field `y` for the address to write to.
        """
        place = self._places[x]
        if self._activations is not None and self._shares:
            by, at, of, address = self._activations
            same = of.spec == x.spec and same_counts(of.ne, x.ne)
            if by is quantize and at == place and same:
                return address
        buffer = self._pool.take("activations", n_bytes)
        self.keep.append(buffer)
        self._append(quantize, x, {"x": x}, {"y": buffer.address})
        self._activations = (quantize, place, x, buffer.address)
        return buffer.address

    def counters(self, n: int) -> int:
        """Address of `n` i64 that are 0 before each step; kernels must reset them to 0."""
        buffer = self._pool.take("counters", 8 * n)
        _COUNTERS.add(buffer)
        self.keep.append(buffer)
        return buffer.address

    def _append(
        self,
        kernel: Kernel,
        node: Tensor,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, float],
    ) -> None:
        record = np.zeros((), kernel.record_dtype)
        index = len(self.records)
        for field in kernel.record_dtype.names or ():
            is_tensor = record.dtype[field] == TENSOR
            if is_tensor and field in tensors:
                record[field] = self._operand(tensors[field])
                ne = tensors[field].ne
                self.count_fields += count_fields(index, record.dtype, field, ne)
            elif field in values:
                record[field] = values[field]
                self.count_fields += count_fields(index, record.dtype, field, values[field])
            elif field == "scratch":
                record[field] = self._scratch(kernel, node)
            else:  # an optional tensor that is absent keeps its address of 0
                assert is_tensor or field in (HEADER.names or ()), (
                    f"{kernel}: nothing fills the field {field}"
                )
        self.records.append(record)
        self.kernels.append(kernel)
        self.nodes.append(node)

    def _operand(self, tensor: Tensor) -> tuple[int, ...]:
        return (self._places[tensor].address, *tensor.ne, *tensor.nb)

    def _scratch(self, kernel: Kernel, node: Tensor) -> int:
        assert kernel.scratch_bytes is not None, f"{kernel} has a scratch field, but no size"
        buffer = self._pool.take("scratch", kernel.scratch_bytes(node, self.n_threads))
        self.keep.append(buffer)
        return buffer.address

    def _forget_overwritten(self, node: Tensor) -> None:
        """Quantised activations are stale once a later node's result lies where `x` lay."""
        if self._activations is None:
            return
        written, source = self._places[node], self._activations[1]
        if written.buffer is not source.buffer:
            return
        x = self._activations[2]
        apart = (
            written.offset + node.spec.n_bytes <= source.offset
            or source.offset + x.spec.n_bytes <= written.offset
        )
        if not apart:
            self._activations = None
