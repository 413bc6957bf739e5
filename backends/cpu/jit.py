"""Loads the machine code of kernels into this process: from the disk cache, or compiled now.

    jit = Jit()                              # for this host; Jit("generic") to force a level
    addresses = jit.load([rms_norm_f32])     # {kernel: address}

A warm start reads objects and loads them. Missing ones are compiled by separate processes
(`compiling.py`), which import numba and LLVM; this process does not.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from functools import cache
from weakref import WeakSet

from ggmlpy.backends.cpu.cache import Cache, KernelCacheWarning
from ggmlpy.backends.cpu.compiling import Announcer, Job, Progress, compile_all
from ggmlpy.backends.cpu.isa import ISA, select
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.key import Keys
from ggmlpy.backends.cpu.linker import Linker
from ggmlpy.common.callers import warn_caller
from ggmlpy.errors import BackendError

_ALL: WeakSet[Jit] = WeakSet()  # of this process


class Jit:
    """Addresses of compiled entries for one instruction set. Safe to use from several threads."""

    def __init__(
        self,
        isa: str | ISA | None = None,
        *,
        cache: Cache | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`isa` is a level's name, None for the best one here. Raises BackendError without it."""
        self.isa = isa if isinstance(isa, ISA) else select(isa)
        self.cache = cache or Cache()
        self._keys = Keys(self.isa)
        self._progress = progress
        self._warned = False
        self._addresses: dict[Entry, int] = {}
        self.begin()
        _ALL.add(self)

    def begin(self) -> None:
        """Creates the locks. A forked child must do so again: its copies, and those inside LLVM,
        may be held by threads of the parent. Loaded code stays."""
        self._lock = threading.Lock()
        self._linker = Linker(self.isa)

    @property
    def uses_llvm(self) -> bool:
        """Whether LLVM linked some of the code, so that its library is in this process's memory."""
        return self._linker.uses_llvm

    def load(self, entries: Iterable[Entry]) -> dict[Entry, int]:
        """The address of each entry, compiling those that the cache lacks.

        Raises KernelError if one cannot be compiled.
        """
        requested = list(entries)
        with self._lock:
            jobs = self._jobs([e for e in dict.fromkeys(requested) if e not in self._addresses])
            if jobs:
                addresses = self._link(jobs)
                self._addresses.update({job.entry: addresses[job.symbol] for job in jobs})
            return {entry: self._addresses[entry] for entry in requested}

    def address(self, entry: Entry) -> int:
        """The address of one entry."""
        return self.load([entry])[entry]

    def key(self, entry: Entry) -> str:
        """Identifies the code of an entry (key.py). Raises KernelError where it cannot be told."""
        with self._lock:
            return self._keys.key(entry)

    def _link(self, jobs: list[Job]) -> dict[str, int]:
        """Addresses by symbol. Cached objects that cannot be loaded are compiled again."""
        found = self.cache.get_all(job.key for job in jobs)
        kept = {job.symbol: found[job.key] for job in jobs if job.key in found}
        objects = kept | self._compile([job for job in jobs if job.symbol not in kept])
        try:
            return self._linker.link(objects)
        except BackendError:
            if not kept:
                raise
            return self._linker.link(self._compile(jobs, anew=True))

    def _jobs(self, entries: list[Entry]) -> list[Job]:
        jobs = []
        for entry in entries:
            key = self._keys.key(entry)
            jobs.append(Job(entry, re.sub(r"\W", "_", f"ggmlpy_{entry.name}_{key[:8]}"), key))
        return jobs

    def _compile(self, jobs: list[Job], *, anew: bool = False) -> dict[str, bytes]:
        """Object code by symbol, stored in the cache as it arrives; `anew`: whatever it has."""
        if not jobs:
            return {}
        progress = self._progress or Announcer(self.isa)
        done = compile_all(jobs, self.isa, self.cache, progress, anew=anew)
        self.cache.drop_unused()
        self._warn_if_not_kept()
        return done

    def _warn_if_not_kept(self) -> None:
        problem, self.cache.problem = self.cache.problem, None
        if problem is not None and not self._warned:
            self._warned = True
            warn_caller(
                f"compiled kernels cannot be kept in {self.cache.folder}:"
                f" {problem.strerror or problem}. Each start compiles them again, unless"
                " GGMLPY_CACHE_DIR names a folder that this user alone can write to",
                KernelCacheWarning,
            )


@cache
def shared_jit(isa: ISA) -> Jit:
    """This process's Jit for an instruction set: code is never unloaded, so it is loaded once."""
    return Jit(isa)


def _begin_all() -> None:
    for jit in _ALL:
        jit.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
