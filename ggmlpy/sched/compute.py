"""Compute tensors in one call: build the graph, run it, keep the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray

from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.common.arguments import checked, kind_of
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor, tensors_of
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import Executable

FALLBACK = "reference"  # runs what the wished backend has no kernel for, as ggml's CPU does


def backends_for(
    backend: str | Backend | Sequence[str | Backend], n_threads: int | None = None
) -> list[Backend]:
    """The wished backend, then those that run what it cannot: device, cpu, reference.

    A list is taken as it is. Raises BackendError, ArgumentError for an empty list.
    """
    if isinstance(backend, list | tuple):
        if not backend:
            raise ArgumentError("backend is an empty list: it must name at least one")
        return [b if isinstance(b, Backend) else get_backend(b, n_threads) for b in backend]
    assert isinstance(backend, str | Backend)
    first = backend if isinstance(backend, Backend) else get_backend(backend, n_threads)
    chain = [first]
    if not first.buffer_type.is_host:
        chain.append(get_backend("cpu", n_threads))
    if first.name != FALLBACK:
        chain.append(get_backend(FALLBACK))
    return chain


@overload
def compute(
    tensor: Tensor,
    /,
    *,
    backend: str | Backend = ...,
    n_threads: int | None = ...,
    pin: Pin | None = ...,
    passes: str | Sequence[str] | None = ...,
) -> NDArray[Any]: ...
@overload
def compute(
    tensors: Sequence[Tensor],
    /,
    *,
    backend: str | Backend = ...,
    n_threads: int | None = ...,
    pin: Pin | None = ...,
    passes: str | Sequence[str] | None = ...,
) -> list[NDArray[Any]]: ...
@overload
def compute(
    tensor: Tensor,
    another: Tensor,
    /,
    *more: Tensor,
    backend: str | Backend = ...,
    n_threads: int | None = ...,
    pin: Pin | None = ...,
    passes: str | Sequence[str] | None = ...,
) -> list[NDArray[Any]]: ...
@checked
def compute(
    *tensors: Tensor | Sequence[Tensor],
    backend: str | Backend = "auto",
    n_threads: int | None = None,
    pin: Pin | None = None,
    passes: str | Sequence[str] | None = None,
) -> NDArray[Any] | list[NDArray[Any]]:
    """The values of `tensors` in numpy order: one array, or a list for several or for a list.

    Computes everything they need on `backend`, and what that cannot run on `reference`. The
    results stay with the tensors: `.numpy()`, `.tobytes()`. `pin` names a backend for chosen nodes.
    `passes` are those that may make several nodes one, by name, "all" or "none": results have the
    same bits. None is what GGMLPY_PASSES says, else all. Raises ArgumentError for what is no tensor
    and no pass, WriteError, KernelError, IndexOutOfRange, BackendError.
    """
    roots = tensors_of("compute", tensors)
    if not roots:
        raise ArgumentError("compute takes at least one tensor")
    backends = backends_for(backend, n_threads)
    if pin is not None:
        backends += [get_backend(name) for name in _missing(pin, roots, backends)]
    executable = Executable(Graph(*roots), backends, pin, passes=passes)
    executable.run()
    for tensor in roots:
        if not tensor.is_leaf:
            tensor.place = Place(HostBuffer(executable.raw(tensor)))
    values = [tensor.numpy() for tensor in roots]
    return values[0] if isinstance(tensors[0], Tensor) and len(values) == 1 else values


def _missing(pin: Pin, tensors: Sequence[Tensor], backends: Sequence[Backend]) -> list[str]:
    """Backends that `pin` names and that are not in use yet."""
    in_use = {b.name for b in backends}
    wished = [pin(node) for node in Graph(*tensors).nodes]
    for name in wished:
        if not isinstance(name, str | None):
            raise ArgumentError(f"compute: pin gave {kind_of(name)}: it must give a name or None")
    return [name for name in dict.fromkeys(wished) if name is not None and name not in in_use]
