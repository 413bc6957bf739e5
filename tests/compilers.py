"""Compile processes that stay for the next batch of kernels: importing numba takes them seconds.

Outside of tests they end with their batch (`compiling.py`). One process is for one instruction set.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from ggmlpy.backends.cpu import compiling
from ggmlpy.backends.cpu.compiling import Job
from ggmlpy.backends.cpu.isa import ISA

MAX_IDLE = 4
# After so many a process ends with its batch: numba keeps what it has lowered, about 4 MB a kernel.
MAX_KERNELS = 120
# Tests of the processes themselves, and of source that changes.
OWN = (
    "test_jit.py",
    "test_cache_key.py",
    "test_closure.py",
    "test_compile_time.py",
    "test_interrupts.py",
)


@dataclass(eq=False)
class _Process:
    isa: ISA
    parent: int  # a forked child must not use it: answers would cross
    context: AbstractContextManager[Callable[[Job], bytes]]
    compile: Callable[[Job], bytes]
    n_compiled: int = 0

    def __call__(self, job: Job) -> bytes:
        self.n_compiled += 1
        return self.compile(job)

    def end(self) -> None:
        self.context.__exit__(None, None, None)


_start = compiling.worker
_idle: list[_Process] = []
_lock = threading.Lock()
_patch = pytest.MonkeyPatch()


def _take(isa: ISA) -> _Process:
    with _lock:
        for process in _idle:
            if process.isa == isa and process.parent == os.getpid():
                _idle.remove(process)
                return process
    context = _start(isa)
    return _Process(isa, os.getpid(), context, context.__enter__())


@contextmanager
def _kept(isa: ISA) -> Iterator[Callable[[Job], bytes]]:
    """An idle process for the instruction set, or a new one, which is idle afterwards."""
    process = _take(isa)
    try:
        yield process
    except BaseException:
        process.end()
        raise
    with _lock:
        _idle.append(process)
        kept = [p for p in _idle if p.n_compiled < MAX_KERNELS][-MAX_IDLE:]
        over = [p for p in _idle if p not in kept]
        _idle[:] = kept
    for process in over:
        process.end()


def keep(file: str, n_processes: int) -> None:
    """While tests of a file run, compile in up to `n_processes` at a time, and keep them."""
    _patch.undo()
    if file not in OWN:
        _patch.setattr(compiling, "worker", _kept)
        _patch.setattr(compiling, "default_n_threads", lambda: n_processes)


def end_all() -> None:
    """End those that are idle."""
    _patch.undo()
    while _idle:
        _idle.pop().end()
