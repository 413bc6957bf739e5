"""How a CUDA kernel is declared, and the table of all of them.

    RMS_NORM = Form("norm.cu", "rms_norm")
    ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("eps", "f4")], align=True)

    @kernel("rms_norm", ("f32",), forms=[RMS_NORM], requires=rows_ok)
    def rms_norm(w: Work) -> Iterator[Launch]:
        yield Launch(RMS_NORM, ARGS, grid=(n_rows(w["x"]), 1, 1), threads=256)

The function, a launcher, yields the launches that compute a step. Fields of a launch's arguments
are filled by name: from its `values`, the step's results and operands, the step's parameters. An
optional operand that is absent has the address 0.

What a step holds may be a Count: bounds size grids and scratch memory, and kernels read the values
of a run (`Count.at` in common.cuh). One set of launches serves all runs: a CUDA graph replays it.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.driver import DeviceInfo, Grid
from ggmlpy.backends.cuda.source import Form, Unit
from ggmlpy.backends.rounding import Rounding
from ggmlpy.backends.step import Step
from ggmlpy.graph.tensor import Tensor

MAX_GRID_YZ = 65535  # blocks along y and z; along x there may be 2^31 - 1

Requires = Callable[[Step], bool]  # whether this kernel can run the step


@dataclass(frozen=True, slots=True)
class Scratch:
    """Device memory for one step, or for steps that share it."""

    what: str
    address: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory of an operand or result by counts and strides of a launcher's own, as if by a view
    of it: no byte outside the tensor."""

    tensor: Tensor
    ne: tuple[int, ...]  # 4 counts
    nb: tuple[int, ...]  # 4 strides in bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    args          the dtype of its struct; fields may be TENSOR, SPAN, COUNT and numbers
    grid          blocks
    threads       of a block, along x
    shared_bytes  of dynamic shared memory
    values        of fields: numbers, tensors or their layouts (TENSOR), scratch memory (SPAN),
                  counts (COUNT)
    """

    form: Form
    args: np.dtype[Any]
    grid: Grid
    threads: int
    shared_bytes: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)


class Work(ABC):
    """A step, the device that it is to run on, and scratch memory for it. `w["x"]` is an operand or
    a result."""

    step: Step
    info: DeviceInfo

    def __getitem__(self, name: str) -> Tensor:
        step = self.step
        return step.results[name] if name in step.results else step.operands[name]

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the step's op, and those of the step itself."""
        assert self.step.node.op is not None
        return {**self.step.node.op.params(), **self.step.params}

    @abstractmethod
    def address(self, tensor: Tensor) -> int:
        """Where an operand or result lies, for launchers that choose by alignment."""

    @abstractmethod
    def scratch(self, n_bytes: int, what: str = "scratch") -> Scratch:
        """Memory of undefined content, until the step is complete. Each `what` of a step is memory
        of its own; those of different steps share."""

    @abstractmethod
    def derived(self, kind: str, x: Tensor, n_bytes: int, *more: Tensor) -> tuple[Scratch, bool]:
        """Memory for what is computed from an operand, such as its quantised rows, or from several,
        and whether the caller must compute it: not if a step before has, and none of them was
        written since."""


Launcher = Callable[[Work], Iterator[Launch]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kernel:
    """The implementation of an op for some types of its operands.

    rounding  of x, for products with weights (`Backend.rounding`)
    """

    op: str
    types: tuple[str, ...]
    launcher: Launcher
    forms: frozenset[Form]
    requires: Requires
    rounding: Rounding = Rounding.F32

    def __repr__(self) -> str:
        return f"<CUDA kernel {self.op} of {', '.join(self.types)}>"


_KERNELS: dict[tuple[str, tuple[str, ...]], list[Kernel]] = {}


def kernel(
    op: str,
    types: tuple[str, ...],
    *,
    forms: Iterable[Form],
    requires: Requires = lambda step: True,
    rounding: Rounding = Rounding.F32,
) -> Callable[[Launcher], Launcher]:
    """Files the decorated launcher for the steps of `op` whose operands have these types, in their
    order. `forms` are all that it may launch. The first kernel whose `requires` holds runs."""

    def declare(launcher: Launcher) -> Launcher:
        made = Kernel(op, types, launcher, frozenset(forms), requires, rounding)
        _KERNELS.setdefault((op, types), []).append(made)
        return launcher

    return declare


def kernel_of(step: Step) -> Kernel | None:
    """The kernel that runs a step; None if there is none."""
    load_kernels()
    types = tuple(operand.type.name for operand in step.operands.values())
    for found in _KERNELS.get((step.op, types), ()):
        if found.requires(step):
            return found
    return None


class KernelTable:
    """What the backend supports, without a device."""

    name = "cuda"

    def supports(self, node: Tensor) -> bool:
        return node.op is not None and kernel_of(Step.of(node)) is not None


def all_kernels() -> list[Kernel]:
    load_kernels()
    return [kernel for kernels in _KERNELS.values() for kernel in kernels]


def all_units() -> list[Unit]:
    """Everything there is to compile."""
    units = {form.unit for kernel in all_kernels() for form in kernel.forms}
    return sorted(units, key=str)


@cache
def load_kernels() -> None:
    """Import every module of the folder of kernels, which declares its own."""
    from ggmlpy.backends.cuda import kernels

    for module in sorted(pkgutil.iter_modules(kernels.__path__), key=lambda found: found.name):
        importlib.import_module(f"{kernels.__name__}.{module.name}")
