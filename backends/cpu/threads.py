"""Running a plan on the calling thread, alone or with others that wait for work.

The calling thread is thread 0. The others live as long as the process: each sits in compiled code
(`runner.serve`), spins for a short while for the next plan, and then sleeps in Python until it is
woken. So a decode step that follows at once pays no wake-up, and an idle process no CPU.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from ggmlpy.backends.cpu import runner
from ggmlpy.backends.cpu.choose import choose
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.jit import Jit, shared_jit
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.runner import MAX_NODES, MAX_THREADS, SLOT_BYTES, SLOTS
from ggmlpy.errors import BackendError

# Without a plan: a pause between two decode steps is shorter. Behind a step that has read 0.4 GB of
# weights Python finds nothing of its own in caches, and takes 400 us with a vocabulary of 150,000.
# With a limit of 150 us the others sleep by then, and a step takes 1 to 2 % longer (EPYC, Zen 5,
# 2 threads, 2026-11-27).
_SLEEP_AFTER_S = 500e-6
_NAP_AFTER_S = 300e-6  # for a share's work of others, which with a core for each is less
_WAKING_S = 100e-3  # in which a woken thread finds the plan that it was woken for, or sleeps again
_Native = Callable[..., int]


_ENTRIES = (
    runner.run,
    runner.release,
    runner.serve,
    runner.park,
    runner.unpark,
    runner.read_ticks,
)


def common_entries(jit: Jit) -> tuple[Entry, ...]:
    """Entries that plans and the sampler need of this Jit: compiled together with a plan's kernels,
    on all cores, instead of after them."""
    return (*_ENTRIES, choose) if jit is shared_jit(select()) else ()


@cache
def _native() -> dict[Entry, _Native]:
    """The runner's C functions; calling one releases the GIL."""
    addresses = shared_jit(select()).load(_ENTRIES)
    functions: dict[Entry, _Native] = {}
    for entry, address in addresses.items():
        signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(entry.params))
        functions[entry] = signature(address)
    return functions


@cache
def _ticks_per_second() -> float:
    """The rate of the runner's clock, from spinning for two milliseconds."""
    read = _native()[runner.read_ticks]
    start_s, start = time.perf_counter(), read()
    while (end_s := time.perf_counter()) < start_s + 2e-3:
        pass
    return (read() - start) / (end_s - start_s)


def aligned_zeros(n_bytes: int) -> np.ndarray:
    """Zeroed bytes that start at a multiple of 128, two cache lines."""
    memory = np.zeros(n_bytes + 127, np.uint8)
    start = -memory.ctypes.data % 128
    return memory[start : start + n_bytes]


def check_n_threads(n_threads: int) -> None:
    """Raise BackendError for more threads than a plan can run on, or for none."""
    if not 1 <= n_threads <= MAX_THREADS:
        raise BackendError(f"n_threads is {n_threads}, must be 1 to {MAX_THREADS}")


class ThreadPool:
    """The threads of this process. `run` may be called from any Python thread; one plan runs at a
    time. On one thread it runs where it is called, and no other is started."""

    def __init__(self) -> None:
        native = _native()
        self._run, self._release = native[runner.run], native[runner.release]
        self._serve = native[runner.serve]
        self._park, self._unpark = native[runner.park], native[runner.unpark]
        self._memory = aligned_zeros(SLOTS + MAX_THREADS * SLOT_BYTES)
        rate = _ticks_per_second()
        self._sleep_after = int(_SLEEP_AFTER_S * rate)
        self._waking = int(_WAKING_S * rate)
        self._word(runner.SLEEP_AFTER)[0] = self._sleep_after
        self._word(runner.NAP_AFTER)[0] = int(_NAP_AFTER_S * rate)
        self._base = int(self._memory.ctypes.data)
        self._lock = threading.Lock()
        # Held while there is nothing to wake up for. Not events: an interrupt in the middle of
        # Event.set() leaves the lock inside it held for ever.
        self._beds: list[threading.Lock] = []  # of threads 1, 2, ...
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def run(self, plan: int, n_nodes: int, n_threads: int) -> None:
        """Runs the records at `plan` to the end. Raises BackendError for a bad thread count, or
        for more records than a plan may have."""
        check_n_threads(n_threads)
        if n_nodes >= MAX_NODES:
            raise BackendError(f"the plan has {n_nodes} records, must be below {MAX_NODES}")
        if n_nodes == 0:
            return
        with self._lock:
            self._start_threads(n_threads)
            try:
                if self._run(self._base, plan, n_nodes, n_threads, True):
                    self._wake(n_threads)  # they take part as soon as they are there
                    self._run(self._base, plan, n_nodes, n_threads, False)
            except BaseException:  # an interrupt; the plan has either run or not started
                self._release(self._base, n_threads)
                raise

    def stop(self) -> None:
        """Ends the threads; `run` with several starts none any more."""
        if not self._lock.acquire(timeout=1.0):
            return  # a plan is running in a daemon thread: leave the threads to the process's end
        try:
            self._stopped = True
            self._word(runner.NEXT)[0] = runner.STOP
            for bed in self._beds:
                _release(bed)
            for thread in self._threads:
                if thread.is_alive():  # one whose start was interrupted may never have begun
                    thread.join(timeout=1.0)
        finally:
            self._lock.release()

    def _word(self, offset: int) -> np.ndarray:
        return self._memory[offset : offset + 8].view(np.int64)

    def _start_threads(self, n_threads: int) -> None:
        if self._stopped and n_threads > 1:
            raise BackendError("the interpreter is shutting down: no plan can run on threads")
        for ith in range(len(self._threads) + 1, n_threads):
            bed = threading.Lock()
            bed.acquire()
            thread = threading.Thread(
                target=self._work, args=(ith, bed), name=f"ggmlpy-{ith}", daemon=True
            )
            # Known before it starts: an interrupt while start() waits for it must not let the next
            # plan start another thread of this number.
            self._beds.append(bed)
            self._threads.append(thread)
            try:
                thread.start()
            except RuntimeError as error:
                del self._beds[ith - 1 :], self._threads[ith - 1 :]
                raise BackendError(f"thread {ith} of {n_threads}: {error}") from None

    def _wake(self, n_threads: int) -> None:
        for ith in range(1, n_threads):
            if self._word(SLOTS + ith * SLOT_BYTES + runner.STATE)[0] == runner.PARKED:
                _release(self._beds[ith - 1])

    def _work(self, ith: int, bed: threading.Lock) -> None:
        patience = self._sleep_after
        while not self._serve(self._base, ith, patience):
            patience = self._sleep_after
            if self._park(self._base, ith):
                bed.acquire()
                self._unpark(self._base, ith)
                patience = self._waking  # thread 0 may take its time to post the plan


def _release(bed: threading.Lock) -> None:
    """Wakes the thread that waits for the lock, if there is one. Not thread-safe."""
    if bed.locked():
        bed.release()


_pool: ThreadPool | None = None
_pool_lock = threading.Lock()


def thread_pool() -> ThreadPool:
    """The pool of this process, made on first use."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPool()
        return _pool


def _forget() -> None:
    """In a forked child the threads do not exist, and locks may be held for ever."""
    global _pool, _pool_lock
    _pool = None
    _pool_lock = threading.Lock()


@atexit.register
def _stop() -> None:
    if _pool is not None:
        _pool.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
