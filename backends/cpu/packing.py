"""Packs weights for the kernels: once for all plans, on all threads, never in memory twice.

A plan's weights are packed together, in pieces that any thread may take, by compiled code
(pieces.py). Pieces of a file are read, not mapped, into a buffer of each thread, which stays in the
core's cache: no page of the file takes up memory of the process. A packed weight lives as long as
the weight itself. Weights that need no packing are used where the file is mapped, and read once by
the same threads, so that their progress is shown too. So are those that a cache on disk has packed
(packed_cache.py), which are summed on the way: one that was damaged is packed anew, in its place.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import astuple, dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.formats.columns import GROUP
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.packed_cache import KeptWeight, PackedCache, key_of
from ggmlpy.backends.cpu.pieces import (
    DONE,
    NEXT,
    PIECE,
    QUEUE_WORDS,
    SUMS,
    checksum,
    do_pieces,
    scratch_bytes,
    touch,
)
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.progress import tell
from ggmlpy.errors import AllocationError, FileError
from ggmlpy.graph.buffer import ALIGNMENT, HostBuffer, Place, address_of, aligned_bytes
from ggmlpy.graph.tensor import Tensor

_TELL_AFTER_S = 0.05  # and then as often
_MAX_SLAB_BYTES = 1 << 28
_FEW_BYTES = 1 << 20  # packed before a thread would have started
_TOUCHED_BYTES = 1 << 20  # mapped ones of a piece
_KEPT_BYTES = 1 << 20  # of the smallest packed weight that is worth a file


class Packing(Protocol):
    """A way to pack weights, compared by identity."""

    @property
    def entry(self) -> Entry:
        """The compiled function that packs groups of rows (formats/columns.py)."""

    def packed_bytes(self, weight: Tensor) -> int:
        """Bytes of the packed weight."""

    def pieces(self, weight: Tensor, out: int) -> NDArray[np.void]:
        """The work that fills [packed_bytes] at address `out`: PIECEs that may be done side by
        side. What packs them, which file they are in and where the weight's bytes begin is filled
        in by who has them done."""


class WeightUser(Protocol):
    """Gives a format the memory of a weight: a plan's builder, or a loader."""

    def packed(self, weight: Tensor, packing: Packing) -> int: ...

    def stored(self, weight: Tensor) -> int: ...


class _Touching:
    """Packs nothing: brings a mapped weight into memory."""

    entry = touch

    def packed_bytes(self, weight: Tensor) -> int:
        return 0

    def pieces(self, weight: Tensor, out: int) -> NDArray[np.void]:
        return _touching(weight.spec.n_bytes)


def _touching(n_bytes: int) -> NDArray[np.void]:
    """The work that brings so many mapped bytes into memory."""
    begin = np.arange(0, n_bytes, _TOUCHED_BYTES, dtype=np.int64)
    pieces = np.zeros(len(begin), PIECE)
    pieces["rows"] = begin
    pieces["n_rows"] = GROUP
    pieces["row_bytes"] = np.minimum(_TOUCHED_BYTES, n_bytes - begin) // GROUP
    return pieces


_TOUCHING = _Touching()


@dataclass(frozen=True, slots=True, eq=False)
class _PackJob:
    """A weight to be packed, or as `_TOUCHING` to be brought into memory."""

    weight: Tensor
    source: HostBuffer
    offset: int  # of the weight in it
    packing: Packing
    packed: HostBuffer
    key: str | None = None  # under which a cache is to keep what was packed

    @property
    def place(self) -> Place:
        return Place(self.source, self.offset)

    @property
    def entries(self) -> set[Entry]:
        summing = {checksum} if self.key is not None else set()
        return {self.packing.entry, *summing}

    def pieces(self, code: Mapping[Entry, int]) -> NDArray[np.void]:
        pieces = self.packing.pieces(self.weight, self.packed.address)
        file = self.source.file
        if self.packing is _TOUCHING and file is not None:
            file.check(self.offset, self.weight.spec.n_bytes)  # a map ends where its file does
            file = None
        pieces["pack"] = code[self.packing.entry]
        pieces["file"] = -1 if file is None else file.file.descriptor
        pieces["rows"] += self.offset + (self.source.address if file is None else file.begin)
        return pieces


class _SumJob:
    """A packed weight to be summed, and so brought into memory if it is mapped."""

    def __init__(self, packed: HostBuffer) -> None:
        self.packed = packed
        self._pieces = _touching(packed.n_bytes)
        self._sums = np.zeros((len(self._pieces), SUMS), np.int64)
        self._pieces["file"] = -1
        self._pieces["rows"] += packed.address
        self._pieces["out"] = address_of(self._sums) + self._sums.strides[0] * np.arange(
            len(self._pieces)
        )

    def pieces(self, code: Mapping[Entry, int]) -> NDArray[np.void]:
        self._pieces["pack"] = code[checksum]
        return self._pieces

    def digest(self) -> bytes:
        """Tells the weight from others, when its pieces are done."""
        return hashlib.sha256(self._sums.tobytes()).digest()


@dataclass(frozen=True, slots=True, eq=False)
class _KeptJob:
    """A packed weight that a cache has: mapped, and to be brought into memory."""

    anew: _PackJob  # what packs it in the same place, if it was damaged
    digest: bytes  # of it when it was packed
    summing: _SumJob

    @property
    def packed(self) -> HostBuffer:
        return self.anew.packed

    @property
    def entries(self) -> set[Entry]:
        return self.anew.entries

    def pieces(self, code: Mapping[Entry, int]) -> NDArray[np.void]:
        return self.summing.pieces(code)

    def is_damaged(self) -> bool:
        """Whether it is not what was packed, when its pieces are done."""
        return self.summing.digest() != self.digest


_Job = _PackJob | _SumJob | _KeptJob


@dataclass(frozen=True, slots=True)
class Keeping:
    """A cache on disk for packed weights, and what identifies the code of an entry."""

    cache: PackedCache
    key_of_code: Callable[[Entry], str]

    def key(self, weight: Tensor, place: Place, packing: Packing) -> str | None:
        """That of a packed weight; None where its bytes are in no file, or were changed in it."""
        assert isinstance(place.buffer, HostBuffer)
        if place.buffer.file is None:
            return None
        file, begin = place.buffer.file.file, place.buffer.file.begin + place.offset
        try:
            stamp = file.stamp()
        except FileError:
            return None
        code = self.key_of_code(packing.entry)
        return key_of((*astuple(stamp), begin, weight.type.name, *weight.ne, code))


class _Slabs:
    """Memory for many weights, few of which are large: in pieces of their own, the small ones would
    get no huge pages, and so take more time to fill and more translations to read."""

    def __init__(self) -> None:
        self._left = aligned_bytes(0)
        self._n_taken = 0

    def take(self, n_bytes: int) -> HostBuffer:
        """Zeroed memory. A slab is as large as all that was taken before: untouched, it is free."""
        if n_bytes > len(self._left):
            self._left = aligned_bytes(max(n_bytes, min(self._n_taken, _MAX_SLAB_BYTES)))
        taken, rest = n_bytes, -n_bytes % ALIGNMENT
        buffer = HostBuffer(self._left[:taken])
        self._left = self._left[taken + rest :]
        self._n_taken += taken + rest
        return buffer


_Key = tuple[int, Packing]  # the weight's offset in its buffer
_packed: WeakKeyDictionary[HostBuffer, dict[_Key, HostBuffer]] = WeakKeyDictionary()


class WeightLoader:
    """Packs weights before there is a plan, in the way that a plan's builder requests them."""

    def __init__(self, keeping: Keeping | None = None) -> None:
        self.weights = PackedWeights(keeping)

    def packed(self, weight: Tensor, packing: Packing) -> int:
        """The address of the packed weight."""
        assert weight.place is not None
        return self.weights.get(weight, weight.place, packing).address

    def stored(self, weight: Tensor) -> int:
        """The address of the weight as it is."""
        assert weight.place is not None
        self.weights.use_stored(weight, weight.place)
        return weight.place.address


class PackedWeights:
    """The weights of one plan: copies that exist already, and those that `make` will fill, from a
    cache on disk if it has them."""

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._jobs: dict[tuple[HostBuffer, _Key], _PackJob | _KeptJob] = {}
        self._slabs = _Slabs()
        self._keeping = keeping

    def get(self, weight: Tensor, place: Place, packing: Packing) -> HostBuffer:
        """The packed copy of the weight at `place`: it may be filled by `make` only."""
        key, source = (place.offset, packing), place.buffer
        assert isinstance(source, HostBuffer)
        made = _packed.get(source, {}).get(key)
        if made is not None:
            return made
        job = self._jobs.get((source, key))
        if job is None:
            job = self._jobs[source, key] = self._job(weight, place, packing)
        return job.packed

    def _job(self, weight: Tensor, place: Place, packing: Packing) -> _PackJob | _KeptJob:
        assert isinstance(place.buffer, HostBuffer)
        n_bytes = packing.packed_bytes(weight)
        key = None
        if self._keeping is not None and n_bytes >= _KEPT_BYTES:
            key = self._keeping.key(weight, place, packing)
            kept = None if key is None else self._keeping.cache.get(key, n_bytes)
            if kept is not None:
                packed = HostBuffer(kept.data)
                anew = _PackJob(weight, place.buffer, place.offset, packing, packed, key)
                return _KeptJob(anew, kept.digest, _SumJob(packed))
        packed = self._memory_for(weight, n_bytes)
        return _PackJob(weight, place.buffer, place.offset, packing, packed, key)

    def _memory_for(self, weight: Tensor, n_bytes: int) -> HostBuffer:
        try:
            return self._slabs.take(n_bytes)
        except AllocationError as error:
            raise AllocationError(f"packed weights, from {weight.name} on: {error}") from None

    def use_stored(self, weight: Tensor, place: Place) -> None:
        """The weight at `place` is used as it is: `make` brings what of it is in a mapped file, or
        raises FileError where that was cut short. Where files are not read at positions (on
        Windows) pages come when they are first used."""
        if isinstance(place.buffer, HostBuffer) and place.buffer.file is not None:
            self.get(weight, place, _TOUCHING)

    @property
    def entries(self) -> set[Entry]:
        """The compiled functions that `make` needs; none where there is nothing to fill."""
        of_jobs = {entry for job in self._jobs.values() for entry in job.entries}
        return {do_pieces, *of_jobs} if of_jobs else of_jobs

    def make(self, n_threads: int, code: Mapping[Entry, int]) -> None:
        """Fill the copies that are not filled yet, and give the cache those packed for it.

        After an error or an interrupt, `make` has all of them to fill once more; but if the cache
        was being written already, the copies stay. `code` has the addresses of `entries`. Raises
        FileError for a file that cannot be read.
        """
        if not self._jobs:
            return
        jobs = list(self._jobs.values())
        to_pack = [job for job in jobs if isinstance(job, _PackJob)]
        packs = any(job.packing is not _TOUCHING for job in to_pack)
        _do(jobs, n_threads, code, "packing weights" if packs else "reading weights")
        damaged = [job.anew for job in jobs if isinstance(job, _KeptJob) and job.is_damaged()]
        _do(damaged, n_threads, code, "packing weights")
        for (source, key), done in self._jobs.items():
            _packed.setdefault(source, {})[key] = done.packed
        self._jobs.clear()
        if self._keeping is not None:
            _keep(to_pack + damaged, self._keeping, n_threads, code)


def _do(jobs: Sequence[_Job], n_threads: int, code: Mapping[Entry, int], doing: str) -> None:
    """All pieces of jobs, on `n_threads` threads. Raises FileError if one could not be read."""
    if not jobs:
        return
    of_jobs = [job.pieces(code) for job in jobs]
    pieces = np.concatenate(of_jobs)
    failed = _Work(jobs, pieces, code[do_pieces]).do(n_threads, doing)
    if failed is not None:
        job = jobs[np.repeat(np.arange(len(jobs)), [len(p) for p in of_jobs])[failed]]
        assert isinstance(job, _PackJob)
        _raise_unread(job.source, pieces[failed])


def _keep(
    jobs: Sequence[_PackJob], keeping: Keeping, n_threads: int, code: Mapping[Entry, int]
) -> None:
    """Give the cache what was packed for it, unless its file was written to meanwhile."""
    kept = {
        job.key: _SumJob(job.packed)
        for job in jobs
        if job.key is not None and job.key == keeping.key(job.weight, job.place, job.packing)
    }
    if kept:
        _do(list(kept.values()), n_threads, code, "summing packed weights")
        keeping.cache.put_all(
            {key: KeptWeight(summed.packed.data, summed.digest()) for key, summed in kept.items()}
        )


def _raise_unread(source: HostBuffer, piece: np.void) -> None:
    """Says why a piece's bytes could not be read, by reading them once more."""
    file = source.file
    assert file is not None
    scratch = np.empty(piece["n_rows"] * piece["row_bytes"], np.uint8)
    file.read(int(piece["rows"]) - file.begin, scratch)
    raise FileError(f"{file.file.name}: the file could not be read for a while")


class _Work:
    """Pieces, which threads take one by one."""

    def __init__(self, jobs: Sequence[_Job], pieces: NDArray[np.void], do_pieces: int) -> None:
        # Kept for threads that a second interrupt leaves behind, each with the piece it has begun:
        # what they read and write must be there until they have ended too.
        self._jobs = jobs
        self._pieces = pieces
        self._do_pieces = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(do_pieces)
        self._queue = np.zeros(QUEUE_WORDS, np.int64)
        self._n_bytes = int((pieces["n_rows"] * pieces["row_bytes"]).sum())
        self._scratch_bytes = scratch_bytes(pieces)

    def do(self, n_threads: int, doing: str) -> int | None:
        """All of it, on `n_threads` threads; tells how much is done, as `doing`. A piece whose
        bytes could not be read, if there is one."""
        if self._n_bytes < _FEW_BYTES:
            return self._take_part()
        with ThreadPoolExecutor(n_threads, "ggmlpy-pack") as pool:
            try:
                with starting_threads():
                    parts = [pool.submit(self._take_part) for _ in range(n_threads)]
                left: set[Future[int | None]] = set(parts)
                while left:
                    left = wait(left, _TELL_AFTER_S)[1]
                    tell(doing, int(self._queue[DONE]) / self._n_bytes)
            finally:
                # After an error or an interrupt each thread ends with its piece.
                self._queue[NEXT] = len(self._pieces)
        return next((i for part in parts if (i := part.result()) is not None), None)

    def _take_part(self) -> int | None:
        scratch = np.empty(self._scratch_bytes, np.uint8)
        addresses = (address_of(array) for array in (self._queue, self._pieces))
        failed = self._do_pieces(*addresses, len(self._pieces), address_of(scratch))
        return None if failed < 0 else int(failed)
