"""Copies between the memories of devices during a run, in order with the work of their queues.

host -> device      queued on the device; the host must not change the bytes until it is complete
device -> host      queued on the device; the host waits for it
device -> device    queued on the source or else the target, whichever can copy between the two,
                    behind the other's earlier work and before its next; through the host if neither
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from ggmlpy.backends.base import Backend, Event
from ggmlpy.graph.buffer import Buffer, BufferType, HostBuffer, Place, aligned_bytes
from ggmlpy.graph.tensor import Tensor

Part = tuple[Backend, Callable[[], None]]  # of a run: a backend, and what submits work to it


class Pool(Protocol):
    """Allocates memory for copies."""

    reading: list[Event]  # behind submitted copies that read host memory

    def take(self, memory: BufferType, n_bytes: int, use: str = ...) -> Buffer: ...


def transfer(
    pool: Pool, target: Backend | None, to: Place, source: Backend | None, at: Place, n_bytes: int
) -> None:
    """Copy bytes from `at`, memory of `source`, to `to`, memory of `target`.

    A backend is None where none in use owns the memory. Bytes that neither backend can copy go
    through memory of the host, which waits.
    """
    types = at.buffer.type, to.buffer.type
    by, other = source, target
    if by is None or not by.can_copy(*types):
        by, other = other, by
    if by is None or not by.can_copy(*types):
        for backend in (by, other):
            if backend is not None:
                backend.record().wait()
        to.buffer.write(to.offset, at.buffer.read(at.offset, n_bytes))
        return
    if other is not None and other.is_async:
        by.wait(other.record())
        by.copy(to, at, n_bytes)
        other.wait(by.record())
        return
    by.copy(to, at, n_bytes)
    if by.is_async and at.buffer.type.is_host:
        pool.reading.append(by.record())
    else:
        by.record().wait()


def in_order(parts: Sequence[Part]) -> list[Callable[[], None]]:
    """The functions of parts, with waits between those of different backends.

    Backends may share memory without any copy. So each part waits for the one before it, and the
    first for the last of the run before, if that may still be queued.
    """
    ordered: list[Callable[[], None]] = []
    for i, (backend, submit) in enumerate(parts):
        before = parts[i - 1][0]
        if before.is_async and before is not backend:
            ordered.append(partial(_wait_for, backend, before))
        ordered.append(submit)
    return ordered


def _wait_for(backend: Backend, before: Backend) -> None:
    backend.wait(before.record())


_fetched: WeakKeyDictionary[Buffer, dict[tuple[int, BufferType], HostBuffer]] = WeakKeyDictionary()


def fetch(weight: Tensor, memory: BufferType) -> Place:
    """A weight of a device in memory of the host, copied there by the first plan that reads it.

    A host backend may pack a weight while it plans, so a copy that runs fill would come too late.
    """
    at = weight.place
    assert at is not None, f"{weight} has no data"
    copies = _fetched.setdefault(at.buffer, {})
    copy = copies.get((at.offset, memory))
    if copy is None:
        data = aligned_bytes(weight.spec.n_bytes)
        data[:] = at.buffer.read(at.offset, len(data))
        copy = copies[at.offset, memory] = HostBuffer(data, memory)
    return Place(copy)


class Uploads:
    """Leaves on the host that a graph reads on devices, copied there when a run starts.

    Leaves of one buffer, such as the inputs of a model, are copied together, with the bytes between
    the first and the last of them.
    """

    def __init__(
        self,
        uploads: Mapping[Tensor, list[BufferType]],
        owners: Mapping[BufferType, Backend],
        pool: Pool,
    ) -> None:
        self.steps: list[Part] = []
        self._places: dict[tuple[Tensor, BufferType], Place] = {}
        for use, (buffer, memory), leaves in _groups(uploads):
            self._add(pool, owners, buffer, memory, leaves, use)

    def _add(
        self,
        pool: Pool,
        owners: Mapping[BufferType, Backend],
        buffer: Buffer,
        memory: BufferType,
        leaves: list[Tensor],
        use: str,
    ) -> None:
        begin, end = _extent(leaves)
        copied = pool.take(memory, end - begin, use)
        for leaf in leaves:
            assert leaf.place is not None
            self._places[leaf, memory] = Place(copied, leaf.place.offset - begin)
        to, at = Place(copied), Place(buffer, begin)
        target, source = owners[memory], owners.get(buffer.type)
        step = partial(transfer, pool, target, to, source, at, end - begin)
        self.steps.append((target, step))

    def place(self, leaf: Tensor, memory: BufferType) -> Place | None:
        """The place of a leaf's copy; None for a tensor that is not uploaded."""
        return self._places.get((leaf, memory))


def upload_bytes(uploads: Mapping[Tensor, list[BufferType]]) -> dict[tuple[BufferType, str], int]:
    """Bytes that Uploads takes of a pool, by memory and use."""
    found = {}
    for use, (_, memory), leaves in _groups(uploads):
        begin, end = _extent(leaves)
        found[memory, use] = end - begin
    return found


def _groups(
    uploads: Mapping[Tensor, list[BufferType]],
) -> Iterator[tuple[str, tuple[Buffer, BufferType], list[Tensor]]]:
    """Leaves that are copied together: what for, from which buffer to which memory."""
    groups: dict[tuple[Buffer, BufferType], list[Tensor]] = {}
    for leaf, memories in uploads.items():
        assert leaf.place is not None, f"{leaf} has no data"
        for memory in memories:
            groups.setdefault((leaf.place.buffer, memory), []).append(leaf)
    for i, (key, leaves) in enumerate(groups.items()):
        yield f"inputs {i}", key, leaves


def _extent(leaves: list[Tensor]) -> tuple[int, int]:
    """Where the leaves of one buffer begin and end in it."""
    places = [(leaf.place.offset, leaf.spec.n_bytes) for leaf in leaves if leaf.place is not None]
    return min(offset for offset, _ in places), max(offset + n for offset, n in places)
