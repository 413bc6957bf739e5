"""The interface of backends: a Backend prepares a Plan from steps, and the plan runs them.

A third-party backend subclasses Backend, registers a factory under the entry point group
`ggmlpy.backends`, and must pass the conformance tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ggmlpy.backends.rounding import Rounding
from ggmlpy.backends.step import Step
from ggmlpy.common.open_file import FilePlace
from ggmlpy.common.progress import tell
from ggmlpy.errors import Unsupported
from ggmlpy.graph.buffer import HOST, BufferType, HostBuffer, Place
from ggmlpy.graph.count import Counts
from ggmlpy.graph.tensor import Tensor

_PIECE_BYTES = 1 << 24  # of a file, read at a time

Places = Mapping[Tensor, Place]


class Event(ABC):
    """A point in a backend's queue, behind the work that was submitted before it."""

    @abstractmethod
    def wait(self) -> None:
        """Block the host until the queue has passed this point.

        Raises no error of that work, which `Backend.synchronize` and `Plan.check` do.
        """


class _Past(Event):
    def wait(self) -> None:
        pass


_PAST = _Past()


class Plan(ABC):
    """Steps prepared for execution at fixed places in memory, any number of times."""

    n_threads: int = 1  # CPU threads that run the steps

    @abstractmethod
    def submit(self) -> None:
        """Queue all steps in order, behind the work that was submitted before.

        May return before any step has run. Errors of steps are raised by `check`, or by
        `Backend.synchronize`.

        May be called again before that: the runs follow one another. The memory that a plan uses is
        the same in each, and its caller orders what other queues do with it.
        """

    def set_counts(self, counts: Counts) -> None:
        """Set the values of symbols for the runs that are submitted from now on: called before the
        first one if tensors of the plan have counts that vary (`ggmlpy.graph.count`).

        A run must have the results, and the bits, of steps whose tensors have these counts and the
        strides that they have now. It must not write past them. Raises Unsupported by default.
        """
        raise Unsupported(f"{type(self).__module__}: its plans take no counts that a run sets")

    def check(self) -> None:  # noqa: B027  (a backend may raise them in synchronize instead)
        """Raise the error of a completed run: IndexOutOfRange, which names the node, if an index
        tensor has a value out of range. Call it after `Backend.synchronize`.

        An error is raised once. Of several runs since the last call it may be that of the last.
        """


class Backend(ABC):
    """The base of backends. A subclass must define `name`, `supports` and `plan`.

    The other methods have defaults for a backend that runs plans at once, in host memory. Results
    lie in arenas of `buffer_type`. A tensor in memory that the backend does not support
    (`supports_buffer_type`) is copied to an arena by the scheduler, in each run.

    A backend whose work may run after `Plan.submit` has returned sets `is_async`. It has a queue:
    plans and copies run in the order in which they were submitted, and `record` and `wait` order
    them with those of other queues.
    """

    name: str
    buffer_type: BufferType = HOST
    host_buffer_type: BufferType = HOST  # host memory with the fastest copies to the backend
    is_async: bool = False
    takes_counts: bool = False  # whether its plans have `set_counts`; if not, shapes are exact
    batch_invariant: bool = True  # whether a row has the same bits in every batch

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether `plan` can run this node."""

    def supports_step(self, step: Step) -> bool:
        """Whether `plan` can run this fused step, whose nodes it supports one by one.

        If not, the nodes run as separate steps.
        """
        return False

    @abstractmethod
    def plan(self, steps: Sequence[Step], places: Places) -> Plan:
        """Prepare steps for execution: single nodes, without views, and supported fused steps.

        `places` has the place of every operand and result. The bytes of an operand may be read
        here, to pack it for example, only of a weight: on the host of any, on a device of one whose
        own `place` is that. Runs write the others there, also weights that `offload_op` brings.
        """

    def rounding(self, node: Tensor) -> Rounding:
        """How this node, a product with weights, rounds its activations first.

        The conformance suite holds the backend to it.
        """
        return Rounding.F32

    def prepare(self, nodes: Sequence[Tensor]) -> None:  # noqa: B027  (an optional head start)
        """Compile what plans of these nodes, which it supports, will need.

        Optional: `plan` compiles what is missing. Many kernels at once can take less time.
        """

    def settings(self) -> str:
        """The settings for this machine as text for users: threads, instruction set."""
        return ""

    def supports_buffer_type(self, type: BufferType) -> bool:
        """Whether nodes may read and write buffers of this type in place."""
        return type is self.buffer_type or (type.is_host and self.buffer_type.is_host)

    def offload_op(self, node: Tensor) -> bool:
        """Whether copying a weight of `node` from the host, for this node alone, is worthwhile."""
        return False

    def load_weights(self, weights: Sequence[Weight]) -> None:
        """Load the weights of a model into memory of this backend, by default as they are stored.

        Called once for each weight. Its `place` is in memory of this backend afterwards, and no
        other copy of it is kept. Reports progress (`ggmlpy.common.progress`). Raises FileError and
        AllocationError; weights that were loaded before the error stay loaded.
        """
        leaves = [w.leaf for w in weights if not self._holds(w.leaf)]
        upload(self.buffer_type, leaves, self.host_buffer_type)

    def _holds(self, leaf: Tensor) -> bool:
        return leaf.place is not None and self.supports_buffer_type(leaf.place.buffer.type)

    # --- the queue ---

    def can_copy(self, source: BufferType, target: BufferType) -> bool:
        """Whether `copy` copies between memory of these types, one of which this backend uses.

        By default between its own memory and the host's. Between two devices of which neither can,
        the bytes go through the host.
        """
        return all(type.is_host or self.supports_buffer_type(type) for type in (source, target))

    def copy(self, target: Place, source: Place, n_bytes: int) -> None:
        """Queue a copy to or from memory of this backend, where `can_copy` says that it can.

        Until it is complete, a source on the host must not change, and a target on the host must
        not be read.
        """
        target.buffer.copy_from(target.offset, source.buffer, source.offset, n_bytes)

    def record(self) -> Event:
        """An event behind all work that was submitted so far."""
        return _PAST

    def wait(self, event: Event) -> None:
        """Let work that is submitted from now on start after `event`, which any backend may have
        recorded.

        An event of a queue that this one cannot wait for blocks the host: `event.wait()`.
        """
        event.wait()

    def synchronize(self) -> None:  # noqa: B027  (nothing to wait for without a queue)
        """Block the host until all submitted work is complete, and what that waits for.

        Raises the error of that work, if there is one: afterwards, and once.
        """


@dataclass(frozen=True, slots=True)
class Weight:
    """A leaf to load, and the names of the ops that read it, which decide how it is stored."""

    leaf: Tensor
    ops: frozenset[str]


def upload(
    memory: BufferType,
    leaves: Sequence[Tensor],
    staging: BufferType = HOST,
    write: Writer | None = None,
) -> None:
    """Move leaves to memory of this type, in as few buffers as the maximum size of one allows.

    Bytes of a mapped file are read from the file, piece by piece, into buffers of the type
    `staging`, memory of the host. `write` is the buffer's own, or queues the copy of a piece: it
    returns an event after which the piece may be overwritten, and two of them are used in turn.
    Raises FileError, AllocationError.
    """
    n_all = sum(memory.tensor_bytes(leaf.spec) for leaf in leaves)
    n_done = 0
    largest = max((leaf.spec.n_bytes for leaf in leaves), default=0)
    pieces = _Pieces(staging, largest, write or _write_now)
    for group in _groups(memory, leaves):
        buffer = memory.allocate(sum(memory.tensor_bytes(leaf.spec) for leaf in group))
        offset = 0
        for leaf in group:
            assert leaf.place is not None, f"{leaf} has no data"
            _write(Place(buffer, offset), leaf.place, leaf.spec.n_bytes, pieces)
            leaf.place = Place(buffer, offset)
            offset += memory.tensor_bytes(leaf.spec)
            tell("loading weights", (n_done + offset) / n_all)
        n_done += offset


Writer = Callable[[Place, Place, int], Event]  # target, source on the host, bytes


def _write_now(target: Place, source: Place, n_bytes: int) -> Event:
    data = source.host_bytes[source.offset : source.offset + n_bytes]
    target.buffer.write(target.offset, data)
    return _PAST


class _Pieces:
    """Reads bytes of a file in pieces, into a buffer that is allocated for the first.

    Where copies are queued there are two buffers: one is read into while the other is copied.
    """

    def __init__(self, memory: BufferType, max_bytes: int, write: Writer) -> None:
        self._memory = memory
        self._n_bytes = min(max_bytes, _PIECE_BYTES)
        self._write = write
        self._n_buffers = 1 if write is _write_now else 2
        self._free: deque[tuple[Place, Event]] = deque()

    def copy(self, target: Place, file: FilePlace, begin: int, n_bytes: int) -> None:
        """Copy bytes of a file from `begin` on. Raises FileError."""
        for done in range(0, n_bytes, self._n_bytes):
            piece = self._next()
            n = min(self._n_bytes, n_bytes - done)
            file.read(begin + done, piece.host_bytes[:n])
            copied = self._write(Place(target.buffer, target.offset + done), piece, n)
            self._free.append((piece, copied))

    def _next(self) -> Place:
        if len(self._free) < self._n_buffers:
            return Place(self._memory.allocate(self._n_bytes))
        piece, copied = self._free.popleft()
        copied.wait()
        return piece


def _write(to: Place, at: Place, n_bytes: int, pieces: _Pieces) -> None:
    file = at.buffer.file if isinstance(at.buffer, HostBuffer) else None
    if file is None:
        to.buffer.copy_from(to.offset, at.buffer, at.offset, n_bytes)
    else:
        pieces.copy(to, file, at.offset, n_bytes)


def _groups(memory: BufferType, leaves: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    group: list[Tensor] = []
    n_bytes = 0
    for leaf in leaves:
        n_leaf = memory.tensor_bytes(leaf.spec)
        if group and n_bytes + n_leaf > memory.max_bytes:
            yield group
            group, n_bytes = [], 0
        group.append(leaf)
        n_bytes += n_leaf
    if group:
        yield group
