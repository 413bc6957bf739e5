"""A plan: records in one array, each a kernel's address and its arguments.

    record = make_record(rms_norm_f32, [y, x], {"eps": 1e-5})
    plan = Plan(jit, [rms_norm_f32], [record])
    failure = plan.run(n_threads=2)         # None, or which node reported what

Nothing of Python runs between nodes. A record may be changed between runs: `plan.record(i)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import HEADER, RECORD_BYTES, TENSOR, Kernel
from ggmlpy.backends.cpu.threads import aligned_zeros, thread_pool
from ggmlpy.errors import KernelError

_HEADER_FIELDS = frozenset(HEADER.names or ())


@dataclass(frozen=True, slots=True)
class Failure:
    """What a kernel reported: the index of its node in the plan and the offending value."""

    node: int
    value: int


class Plan:
    """Kernels with their records, ready to run again and again. The caller keeps the memory that
    the records point to alive."""

    def __init__(self, jit: Jit, kernels: Sequence[Kernel], records: Sequence[np.ndarray]) -> None:
        """Loads or compiles the kernels and copies the records, one for each.

        Raises KernelError where a kernel cannot be compiled.
        """
        addresses = jit.load(kernels)
        self._kernels = tuple(kernels)
        self._memory = aligned_zeros(len(kernels) * RECORD_BYTES)
        self._address = int(self._memory.ctypes.data)
        self._status = aligned_zeros(16).view(np.int64)  # node + 1 of the first report, its value
        for i, (kernel, given) in enumerate(zip(kernels, records, strict=True)):
            record = self.record(i)
            record[...] = given
            record["code"] = addresses[kernel]
            record["status"] = self._status.ctypes.data
            record["node"] = i

    @property
    def memory(self) -> NDArray[np.uint8]:
        """All records, RECORD_BYTES each."""
        return self._memory

    def __len__(self) -> int:
        return len(self._kernels)

    def record(self, i: int) -> np.ndarray:
        """Node `i`'s record, by field, for reading and writing."""
        dtype = self._kernels[i].record_dtype
        start = i * RECORD_BYTES
        whole: np.ndarray = self._memory[start : start + dtype.itemsize].view(dtype).reshape(())
        return whole

    def run(self, n_threads: int = 1) -> Failure | None:
        """Runs all nodes in order; what a kernel reported, if one did."""
        self._status[:] = 0
        thread_pool().run(self._address, len(self), n_threads)
        node, value = self._status.tolist()
        return Failure(node - 1, value) if node else None


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a kernel sees it: address, elements and byte strides, fastest dimension first."""

    ptr: int
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]


def make_record(
    kernel: Kernel, operands: Sequence[Operand | None], params: Mapping[str, Any]
) -> np.ndarray:
    """A record for `kernel`: operands in order in its TENSOR fields, the other fields by name.

    An operand that is None, or left off at the end, has address 0. Raises KernelError where there
    are too many operands or a field has no value.
    """
    record = np.zeros((), kernel.record_dtype)
    names = [name for name in kernel.record_dtype.names or () if name not in _HEADER_FIELDS]
    tensors = [name for name in names if kernel.record_dtype[name] == TENSOR]
    if len(operands) > len(tensors):
        raise KernelError(
            f"{kernel.name} takes {len(tensors)} operands ({', '.join(tensors)}), "
            f"is given {len(operands)}"
        )
    for name, operand in zip(tensors, operands, strict=False):
        if operand is not None:
            record[name] = (operand.ptr, *operand.ne, *operand.nb)
    for name in names:
        if name in params:
            record[name] = params[name]
        elif name not in tensors:
            raise KernelError(f"{kernel.name} needs a value for its field {name!r}")
    return record
