"""Kernels compiled in processes of their own, which import numba and LLVM.

They are started for a batch of kernels and end with it: what the compiler takes of memory ends with
them too. No script needs a `__main__` guard for that.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.processes import python, search_path
from ggmlpy.common import log
from ggmlpy.common.limits import memory_hint, starting_threads
from ggmlpy.errors import BackendError, KernelError

Progress = Callable[[int, int, str], None]  # done, total, name of the one just done

_JOBS_PER_WORKER = 3  # a worker takes about as long to start as two kernels to compile


@dataclass(frozen=True, slots=True)
class Job:
    """An entry to compile, what the C function is called, and its key."""

    entry: Entry
    symbol: str
    key: str


def compile_all(
    jobs: Sequence[Job], isa: ISA, cache: Cache, progress: Progress, *, anew: bool = False
) -> dict[str, bytes]:
    """Object code by symbol, stored in the cache as it arrives.

    What another process has stored meanwhile is taken, unless `anew`. Each process has an order of
    its own, so several that start together share the work. Raises KernelError if one cannot be
    compiled, BackendError where no process can be had.
    """
    done: dict[str, bytes] = {}
    lock = threading.Lock()
    queue = deque(random.sample(jobs, len(jobs)))
    progress(0, len(jobs), "")

    def work() -> None:
        with worker(isa) as compile_:
            while queue:
                try:
                    job = queue.popleft()
                except IndexError:
                    return  # another worker was faster
                code = None if anew else cache.get_all([job.key]).get(job.key)
                if code is None:
                    code = compile_(job)
                    cache.put(job.key, code)
                with lock:
                    done[job.symbol] = code
                    progress(len(done), len(jobs), job.entry.name)

    n_workers = min(default_n_threads(), -(-len(jobs) // _JOBS_PER_WORKER))
    with ThreadPoolExecutor(n_workers) as pool:
        try:
            with starting_threads():
                futures = [pool.submit(work) for _ in range(n_workers)]
            for future in futures:
                future.result()
        finally:
            queue.clear()  # after an error or an interrupt, workers end with what they have
    return done


@contextmanager
def worker(isa: ISA) -> Iterator[Callable[[Job], bytes]]:
    """A compile process, as a function from job to object code."""
    path = search_path()
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [*python(), "-m", "ggmlpy.backends.cpu.compile_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # OpenBLAS, which nothing here uses, would start threads with memory of their own.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise BackendError(f"no Python process could be started to compile: {error}") from None
        assert process.stdin is not None
        assert process.stdout is not None

        def compile_(job: Job) -> bytes:
            entry = job.entry
            request = {"module": entry.module, "name": entry.name}
            line = _ask(process, json.dumps(request | {"symbol": job.symbol, "key": job.key}))
            if not line:
                log.seek(0)
                text = log.read().decode(errors="replace")[-4000:]
                died = f"compiling {entry.name}: the worker process died{memory_hint()}"
                raise BackendError(f"{died}\n{text}".strip())
            answer = json.loads(line)
            if "error" in answer:
                raise KernelError(
                    f"{entry.module}.{entry.name} does not compile for {isa.name}:\n"
                    f"{answer['error']}"
                )
            return base64.b64decode(answer["object"])

        try:
            _ask(process, json.dumps({"isa": isa.to_json(), "path": path}), answered=False)
            yield compile_
        finally:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[str], line: str, *, answered: bool = True) -> str:
    """The worker's answer; "" if it died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except OSError:
        return ""
    return process.stdout.readline() if answered else ""


class Announcer:
    """Says on stderr that kernels are being compiled: at once on a terminal, where the line is
    updated, elsewhere once and only if it takes over a second."""

    def __init__(self, isa: ISA) -> None:
        self._isa = isa
        self._start_s = time.monotonic()
        self._said = False

    def __call__(self, done: int, total: int, name: str) -> None:
        kernels = "1 kernel" if total == 1 else f"{total} kernels"
        text = f"compiling {kernels} for this CPU ({self._isa.name}), not in the cache yet"
        if sys.stderr is not None and sys.stderr.isatty() and not log.is_logged():
            end = "\n" if done == total else ""
            print(f"\r{text}: {done}/{total}", end=end, file=sys.stderr, flush=True)
        elif not self._said and time.monotonic() - self._start_s > 1.0:
            self._said = True
            log.show(text)
