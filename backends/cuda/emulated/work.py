"""What is queued on the stream of an emulated device: copies, fills, launches.

Work is made once, and each time it is queued `begin` says what to run: captured work is queued
more than once.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import FAILURE, RUN
from ggmlpy.backends.cuda.driver import Access, Grid
from ggmlpy.backends.cuda.emulated.memory import (
    DEFINED,
    HOST_MEMORY,
    POISON,
    Arena,
    Pending,
    checksum,
)
from ggmlpy.backends.cuda.emulated.runtime import Entry, Prepared, runtime
from ggmlpy.backends.mock.hazards import HazardError, History
from ggmlpy.errors import BackendError

Run = Callable[[bool], None]  # told whether work before it has failed: then nothing is done


class EmulationError(BackendError):
    """A kernel did what it must not: where, in which thread, and what."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Bytes that work accesses, in memory with a history."""

    history: History
    begin: int
    end: int
    writes: bool
    what: str


class Work(ABC):
    """One piece of work."""

    @abstractmethod
    def touched(self) -> Iterator[Touched]:
        """Its accesses. Raises BackendError for memory that is not allocated."""

    @abstractmethod
    def begin(self) -> Run:
        """Called when it is queued: what is to be run later."""


class Fill(Work):
    def __init__(self, arena: Arena, target: int, value: int, n_bytes: int) -> None:
        self._arena, self._target, self._value, self._n_bytes = arena, target, value, n_bytes

    def touched(self) -> Iterator[Touched]:
        block = self._arena.block_of("a fill", self._target, self._n_bytes)
        end = self._target + self._n_bytes
        yield Touched(block.history, self._target, end, True, "a fill")

    def begin(self) -> Run:
        return self._run

    def _run(self, failed: bool) -> None:
        if failed:
            return
        ctypes.memset(self._target, self._value, self._n_bytes)
        ctypes.memset(self._arena.states(self._target), DEFINED, self._n_bytes)


class Copy(Work):
    """A copy. `target_arena` and `source_arena` are None for host memory.

    A source on the host is read when the copy is queued and when it runs: its bytes must be equal.
    A target on the host is poisoned until the copy has run. Neither is so where earlier work that
    is still queued has to do with the bytes.
    """

    def __init__(
        self,
        target_arena: Arena | None,
        target: int,
        source_arena: Arena | None,
        source: int,
        n_bytes: int,
    ) -> None:
        self._target_arena, self._target = target_arena, target
        self._source_arena, self._source = source_arena, source
        self._n_bytes = n_bytes
        ends = ((target_arena, target), (source_arena, source))
        self._pinned = [HOST_MEMORY.pinned(at, n_bytes) for arena, at in ends if arena is None]

    @property
    def is_pageable(self) -> bool:
        """Whether it is from or to host memory that is not pinned."""
        return None in self._pinned

    def touched(self) -> Iterator[Touched]:
        ends = (
            (self._source_arena, self._source, False),
            (self._target_arena, self._target, True),
        )
        for arena, address, writes in ends:
            history = None
            if arena is not None:
                history = arena.block_of("a copy", address, self._n_bytes).history
            elif pinned := HOST_MEMORY.pinned(address, self._n_bytes):
                history = pinned[1]
            if history is not None:
                yield Touched(history, address, address + self._n_bytes, writes, "a copy")

    def begin(self) -> Run:
        pending: list[Pending] = []
        before: int | None = None
        if self._source_arena is None:
            pending.append(Pending(self._source, self._source + self._n_bytes, False))
            if HOST_MEMORY.add(pending[-1]):
                before = checksum(self._source, self._n_bytes)
        if self._target_arena is None:
            pending.append(Pending(self._target, self._target + self._n_bytes, True))
            if HOST_MEMORY.add(pending[-1]):
                ctypes.memset(self._target, POISON, self._n_bytes)

        def run(failed: bool) -> None:
            for access in pending:
                HOST_MEMORY.done(access)
            if failed:
                return
            if before is not None and checksum(self._source, self._n_bytes) != before:
                raise HazardError("host memory was changed while a copy was still to read it")
            ctypes.memmove(self._target, self._source, self._n_bytes)
            if self._target_arena is not None:
                self._set_states(self._target_arena.states(self._target))

        return run

    def _set_states(self, states: int) -> None:
        """What was undefined stays so."""
        if self._source_arena is None:
            ctypes.memset(states, DEFINED, self._n_bytes)
        else:
            ctypes.memmove(states, self._source_arena.states(self._source), self._n_bytes)


class KernelLaunch(Work):
    def __init__(
        self,
        arena: Arena,
        entry: Entry,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        structs: tuple[bytes, bytes],
        accesses: Sequence[Access],
        seed: Callable[[], int],
    ) -> None:
        self._arena = arena
        self._entry = entry
        self._accesses = [
            access for access in (*accesses, *self._of_run(structs[1])) if access.n_bytes
        ]
        self._seed = seed
        self._prepared = Prepared(
            entry, grid, block, shared_bytes, *structs, arena.extent, self._accesses
        )

    def _of_run(self, run: bytes) -> Iterator[Access]:
        """What its second parameter points to: of the counts it is not known how many there are."""
        parameter = np.frombuffer(run, RUN)[0]
        counts, failure = int(parameter["counts"]), int(parameter["failure"])
        if counts:
            block = self._arena.block_of("counts", counts, 4)
            yield Access("counts", counts, block.address + block.n_bytes - counts, False)
        if failure:
            yield Access("the failure", failure, FAILURE.itemsize, True)

    def touched(self) -> Iterator[Touched]:
        for access in self._accesses:
            what = f"{self._entry.form}: {access.what}"
            block = self._arena.block_of(what, access.address, access.n_bytes)
            end = access.address + access.n_bytes
            yield Touched(block.history, access.address, end, access.writes, what)

    def begin(self) -> Run:
        return self._run

    def _run(self, failed: bool) -> None:
        if failed:
            return
        wrong = runtime().launch(self._prepared, self._seed())
        if wrong is not None:
            raise EmulationError(f"{self._entry.form}: {wrong}")


def struct_size(dtype: np.dtype[Any]) -> int:
    """The bytes of the C++ struct that a dtype stands for; 0 if a number in it is not aligned."""
    alignment = 1
    for base, offset in _numbers(dtype, 0):
        if offset % base.itemsize:
            return 0
        alignment = max(alignment, base.itemsize)
    return -(-dtype.itemsize // alignment) * alignment


def _numbers(dtype: np.dtype[Any], offset: int) -> Iterator[tuple[np.dtype[Any], int]]:
    """Numbers in a dtype and where they are; of arrays the first one."""
    if dtype.subdtype is not None:
        yield from _numbers(dtype.subdtype[0], offset)
    elif dtype.fields is not None:
        for field in dtype.fields.values():
            yield from _numbers(field[0], offset + field[1])
    else:
        yield dtype, offset


def struct_bytes(array: Any) -> bytes:
    """A 0-d structured array as the kernel's struct."""
    return bytes(array.tobytes())
