"""Processes that tests start: they take an interrupt as from a terminal, and end with the test.
And what the system refuses: threads, and files that become too large."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Process = subprocess.Popen[bytes]
tells_states = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="only Linux tells whether a process waits"
)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT has its usual effect, on this process and on those that are started meanwhile.

    Under nohup, and in the background of a shell, it is ignored, which processes inherit.
    """
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[Process]:
    """A process, which is killed if it has not ended by itself."""
    with interruptible():
        process = subprocess.Popen(command, **options)
    with process:  # which waits for it in the end, and closes pipes
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def no_start(thread: threading.Thread) -> None:
    """`Thread.start` where the system gives no thread."""
    raise RuntimeError("can't start new thread")


def wait_until_it_waits(process: Process) -> None:
    """Until the process's first thread sleeps, as when it waits for input."""
    stat = Path(f"/proc/{process.pid}/stat")
    while process.poll() is None and stat.read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file becomes larger in the block: the rest of a write fails, as on a full disk."""
    import resource  # not on Windows

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
