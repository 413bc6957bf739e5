"""Backends by name. Third parties add theirs under the entry point group `ggmlpy.backends`.

In: steps of nodes, and the places of their operands and results. Out: a plan that runs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points

from ggmlpy.backends.base import Backend
from ggmlpy.common.arguments import checked
from ggmlpy.common.limits import importing
from ggmlpy.errors import BackendError

ENTRY_POINTS = "ggmlpy.backends"


def _reference(n_threads: int | None) -> Backend:
    from ggmlpy.backends.reference import ReferenceBackend

    return ReferenceBackend()


def _null(n_threads: int | None) -> Backend:
    from ggmlpy.backends.null import NullBackend

    return NullBackend()


def _mock(n_threads: int | None) -> Backend:
    from ggmlpy.backends.mock.backend import MockBackend

    return MockBackend()


def _cpu(n_threads: int | None) -> Backend:
    with importing("the CPU backend"):
        from ggmlpy.backends.cpu.backend import CpuBackend  # and llvmlite: not for all

    return CpuBackend(n_threads)


def _cuda(device: int = 0) -> Backend:
    from ggmlpy.backends.cuda.backend import CudaBackend
    from ggmlpy.backends.cuda.cupy_driver import CupyDriver

    return CudaBackend(CupyDriver(device))


def _cuda_emulated(n_threads: int | None) -> Backend:
    from ggmlpy.backends.cuda.backend import CudaBackend
    from ggmlpy.backends.cuda.emulated.driver import EmulatedDriver

    return CudaBackend(EmulatedDriver())


_BUILT_IN: dict[str, Callable[[int | None], Backend]] = {
    "cpu": _cpu,
    "reference": _reference,
    "null": _null,
    "mock": _mock,
    "cuda": lambda n_threads: _cuda(),
    "cuda-emulated": _cuda_emulated,
}
DEFAULT = "cpu"  # the backend that "auto" stands for


def backend_names() -> list[str]:
    """The built-in names, then those that installed packages add."""
    return [*_BUILT_IN, *sorted(e.name for e in entry_points(group=ENTRY_POINTS))]


@checked
def get_backend(name: str, n_threads: int | None = None) -> Backend:
    """A new backend by its name; "auto" is the fastest one of this machine, "cuda:1" the
    second GPU.

    `n_threads` is the number of CPU threads, None: one per core. Raises BackendError for an unknown
    name, for a backend that cannot be loaded, and for n_threads below 1.
    """
    if n_threads is not None and n_threads < 1:
        raise BackendError(f"n_threads is {n_threads}: it must be at least 1")
    name = DEFAULT if name == "auto" else name
    device = re.fullmatch(r"cuda:(\d+)", name)
    if device is not None:
        return _cuda(int(device.group(1)))
    if name in _BUILT_IN:
        return _BUILT_IN[name](n_threads)
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        made = entry.load()(n_threads)
        if not isinstance(made, Backend):
            raise BackendError(f"backend {name}: {entry.value} made {made!r}, not a Backend")
        return made
    others = ", and cuda:N for GPU N, from 0 on" if name.startswith("cuda") else ""
    raise BackendError(f"no backend {name!r}; there are {', '.join(backend_names())}{others}")
