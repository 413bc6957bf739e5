"""`compute`: build the graph of some tensors, run it, and return the values."""

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

FALLBACK = "reference"  # runs nodes that other backends do not support, as ggml's CPU backend does


def backends_for(
    backend: str | Backend | Sequence[str | Backend], n_threads: int | None = None
) -> list[Backend]:
    """The backend and its fallbacks, in order: device, cpu, reference.

    A list is used without additions. Raises BackendError, ArgumentError for an empty list.
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
    """Compute tensors and return their values: an array, or a list for several or for a list.

    Values are in numpy order (`ne` reversed, trailing ones left out), bf16 and quantised types as
    f32. They stay with the tensors, for `Tensor.numpy` and `Tensor.tobytes`.

    tensors    tensors of any graphs, or one list of them
    backend    the backend that runs all nodes that it supports; others run on its fallbacks
    n_threads  CPU threads; None: one per core
    pin        a function from a node to the name of the backend that must run it, or None
    passes     passes that may fuse nodes, by name, "all" or "none"; None: those of GGMLPY_PASSES,
               or else all. They do not change the bits of results

    Raises ArgumentError for an argument that is not a tensor and for an unknown pass, BackendError
    for a backend that is not installed, KernelError for a node that no backend supports, WriteError
    for a write into a weight or into what the node reads, IndexOutOfRange for a bad index.
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
    pinned = [pin(node) for node in Graph(*tensors).nodes]
    for name in pinned:
        if not isinstance(name, str | None):
            raise ArgumentError(f"compute: pin gave {kind_of(name)}: it must give a name or None")
    return [name for name in dict.fromkeys(pinned) if name is not None and name not in in_use]
