"""Weights rearranged for the kernels: once for all plans, on all threads, never in memory twice.

A plan's weights are packed together, in pieces that any thread may take. What a piece was read from
is let go at once, so of a mapped file no more is in memory than the pieces under way. A weight that
is packed stays so for as long as the weight itself is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from ggmlpy.backends.base import Place
from ggmlpy.progress import tell
from ggmlpy.quants import Bytes
from ggmlpy.storage import ALIGNMENT, Storage, aligned_bytes
from ggmlpy.tensor import Tensor

_TELL_AFTER_S = 0.05  # and then as often
_MAX_SLAB_BYTES = 1 << 28
_FEW_BYTES = 1 << 20  # packed before a thread would have started
_KEPT_BYTES = 1 << 20  # repacking a piece takes up to twice as much beside the piece


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a weight's stored bytes, from `begin` to `end`, and what packs it."""

    begin: int
    end: int
    pack: Callable[[], None]


class Packing(Protocol):
    """A way to pack weights, compared by identity."""

    def packed_bytes(self, weight: Tensor) -> int:
        """Bytes of the packed weight."""

    def pieces(self, weight: Tensor, out: Bytes) -> Iterator[Piece]:
        """The work that fills `out`, [packed_bytes], in pieces that may run side by side."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    weight: Tensor
    packing: Packing
    packed: Storage

    def pieces(self) -> Iterator[Callable[[], int]]:
        """What does each piece and returns how many bytes it took up."""
        source = self.weight.storage
        assert source is not None
        for piece in self.packing.pieces(self.weight, self.packed.data):
            yield partial(_do, piece, source)


def _do(piece: Piece, source: Storage) -> int:
    piece.pack()
    source.release(piece.begin, piece.end)
    return piece.end - piece.begin


class _Slabs:
    """Memory for many weights, few of which are large: in pieces of their own, the small ones would
    get no huge pages, and so take more time to fill and more translations to read."""

    def __init__(self) -> None:
        self._left = aligned_bytes(0)
        self._n_taken = 0

    def take(self, n_bytes: int) -> Storage:
        """Zeroed memory. A slab is as large as all that was taken before: untouched, it is free."""
        if n_bytes > len(self._left):
            self._left = aligned_bytes(max(n_bytes, min(self._n_taken, _MAX_SLAB_BYTES)))
        taken, rest = n_bytes, -n_bytes % ALIGNMENT
        storage = Storage(self._left[:taken])
        self._left = self._left[taken + rest :]
        self._n_taken += taken + rest
        return storage


_Key = tuple[int, Packing]  # the weight's place in its storage
_packed: WeakKeyDictionary[Storage, dict[_Key, Storage]] = WeakKeyDictionary()


class PackedWeights:
    """What one plan needs: copies that are there already, and those that `make` will fill."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[Storage, _Key], _Job] = {}
        self._slabs = _Slabs()

    def get(self, weight: Tensor, place: Place, packing: Packing) -> Storage:
        """The packed copy of the weight at `place`: it may be filled by `make` only."""
        key = (place.offset, packing)
        made = _packed.get(place.storage, {}).get(key)
        if made is not None:
            return made
        job = self._jobs.get((place.storage, key))
        if job is None:
            packed = self._slabs.take(packing.packed_bytes(weight))
            job = self._jobs[place.storage, key] = _Job(weight, packing, packed)
        return job.packed

    def make(self, n_threads: int) -> None:
        """Fill what is not filled yet. After an error or an interrupt nothing of it is kept."""
        if not self._jobs:
            return
        jobs = self._jobs.values()
        n_bytes = sum(job.weight.spec.n_bytes for job in jobs)
        _do_all((piece for job in jobs for piece in job.pieces()), n_bytes, n_threads)
        for (source, key), job in self._jobs.items():
            _packed.setdefault(source, {})[key] = job.packed
        self._jobs.clear()


def _do_all(pieces: Iterable[Callable[[], int]], n_bytes: int, n_threads: int) -> None:
    """Every piece, on `n_threads` threads; tells how much of `n_bytes` is done."""
    queue = deque(pieces)
    done: list[int] = []  # bytes of each piece: appending is atomic

    def work() -> None:
        while True:
            try:
                piece = queue.popleft()
            except IndexError:
                return
            done.append(piece())

    if n_bytes < _FEW_BYTES:
        work()
        return
    _keep_freed_memory()
    with ThreadPoolExecutor(n_threads, "ggmlpy-pack") as pool:
        try:
            left = {pool.submit(work) for _ in range(n_threads)}
            while left:
                finished, left = wait(left, _TELL_AFTER_S)
                for future in finished:
                    future.result()
                tell("packing weights", sum(done) / n_bytes)
        finally:
            queue.clear()  # after an error or an interrupt, each thread ends with its piece


def _keep_freed_memory() -> None:
    """Let the C library keep what repacking takes and frees again for every piece.

    glibc returns to the system what is free beyond twice the largest block that was ever freed.
    Without one of this size, which is never touched, a quarter of the time here went to page faults
    (q6_K, 66,000 of them for 215 MB).
    """
    np.empty(_KEPT_BYTES, np.uint8)
