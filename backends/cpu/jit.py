"""Kernels to machine code: from the disk cache, or compiled now in processes of their own.

    jit = Jit()                              # for this host; Jit("generic") to force a level
    addresses = jit.load([rms_norm_f32])     # {kernel: address}

A warm start reads objects and links them (llvmlite alone). What is missing is compiled by worker
processes, which import numba; no script needs a `__main__` guard for that.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakSet

import llvmlite

from ggmlpy.backends.cpu.cache import Cache, KernelCacheWarning
from ggmlpy.backends.cpu.codegen import Linker
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cpu.isa import ISA, select
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.common.limits import memory_hint, starting_threads
from ggmlpy.errors import BackendError, KernelError
from ggmlpy.graph import types

Progress = Callable[[int, int, str], None]  # done, total, name of the one just done

_HERE = Path(__file__).parent
_COMPILER_SOURCES = (
    "jit.py",
    "kernel.py",
    "frontend.py",
    "numba_parts.py",
    "codegen.py",
    "compile_worker.py",
)
# The module, and the names taken from it: they may be modules too.
_IMPORT = re.compile(
    r"^(?:from|import)[ ]+(ggmlpy\.backends\.cpu[\w.]*)(?:[ ]+import[ ]+([^(\n]+|\([^)]*\)))?",
    re.MULTILINE,
)
# Their versions count: numba types and lowers kernels, by numpy's rules; gguf has grids of weights
# that become part of the machine code.
_PACKAGES = ("numba", "numpy", "gguf")
_JOBS_PER_WORKER = 3  # a worker takes about as long to start as two kernels to compile


@dataclass(frozen=True, slots=True)
class _Job:
    entry: Entry
    symbol: str
    key: str


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
        self._progress = progress
        self._warned = False
        self._addresses: dict[Entry, int] = {}
        self.begin()
        _ALL.add(self)

    def begin(self) -> None:
        """Nobody else is at it, which in a forked child is so whatever the parent was doing: the
        lock, and those inside LLVM, may be held by a thread that is not there. Code stays."""
        self._lock = threading.Lock()
        self._linker: Linker | None = None

    def load(self, entries: Iterable[Entry]) -> dict[Entry, int]:
        """The address of each entry, compiling those that the cache lacks.

        Raises KernelError if one cannot be compiled.
        """
        wanted = list(entries)
        with self._lock:
            jobs = self._jobs([e for e in dict.fromkeys(wanted) if e not in self._addresses])
            if jobs:
                addresses = self._link(jobs)
                self._addresses.update({job.entry: addresses[job.symbol] for job in jobs})
            return {entry: self._addresses[entry] for entry in wanted}

    def address(self, entry: Entry) -> int:
        """The address of one entry."""
        return self.load([entry])[entry]

    def _link(self, jobs: list[_Job]) -> dict[str, int]:
        """Addresses by symbol. What the cache has and LLVM refuses is compiled again."""
        found = self.cache.get_all(job.key for job in jobs)
        kept = {job.symbol: found[job.key] for job in jobs if job.key in found}
        objects = kept | self._compile([job for job in jobs if job.symbol not in kept])
        self._linker = self._linker or Linker(self.isa)
        try:
            return self._linker.link(objects)
        except BackendError:
            if not kept:
                raise
            return self._linker.link(self._compile(jobs))

    def _jobs(self, entries: list[Entry]) -> list[_Job]:
        jobs = []
        for entry in entries:
            identity = (entry.module, entry.name, source_hash(entry.module), _toolchain(self.isa))
            key = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:40]
            jobs.append(_Job(entry, re.sub(r"\W", "_", f"ggmlpy_{entry.name}_{key[:8]}"), key))
        return jobs

    def _compile(self, jobs: list[_Job]) -> dict[str, bytes]:
        """Object code by symbol, stored in the cache as it arrives."""
        if not jobs:
            return {}
        progress = self._progress or _Announcer(self.isa)
        done: dict[str, bytes] = {}
        lock = threading.Lock()
        queue = deque(jobs)
        progress(0, len(jobs), "")

        def work() -> None:
            with _worker(self.isa) as compile_:
                while queue:
                    try:
                        job = queue.popleft()
                    except IndexError:
                        return  # another worker was faster
                    code = compile_(job)
                    self.cache.put(job.key, code)
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
        self._warn_if_not_kept()
        return done

    def _warn_if_not_kept(self) -> None:
        problem, self.cache.problem = self.cache.problem, None
        if problem is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"compiled kernels cannot be kept in {self.cache.folder}:"
                f" {problem.strerror or problem}. Each start compiles them again, unless"
                " GGMLPY_CACHE_DIR names a folder that this user alone can write to",
                KernelCacheWarning,
                stacklevel=2,
            )


@cache
def shared_jit(isa: ISA) -> Jit:
    """The one of this process for an instruction set: code stays for good, so it is loaded once."""
    return Jit(isa)


def _begin_all() -> None:
    for jit in _ALL:
        jit.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)


@contextmanager
def _worker(isa: ISA) -> Iterator[Callable[[_Job], bytes]]:
    """A compile process, as a function from job to object code."""
    path = search_path()
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ggmlpy.backends.cpu.compile_worker"],
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

        def compile_(job: _Job) -> bytes:
            entry = job.entry
            request = {"module": entry.module, "name": entry.name, "symbol": job.symbol}
            request["sources"] = source_hash(entry.module)
            line = _ask(process, json.dumps(request))
            if not line:
                log.seek(0)
                text = log.read().decode(errors="replace")[-4000:]
                died = f"the worker process died{memory_hint()}"
                raise BackendError(f"compiling {job.entry.name}: {died}\n{text}")
            answer = json.loads(line)
            if "error" in answer:
                raise KernelError(
                    f"{job.entry.module}.{job.entry.name} does not compile for {isa.name}:\n"
                    f"{answer['error']}"
                )
            return base64.b64decode(answer["object"])

        try:
            _ask(process, json.dumps({"isa": isa.to_json(), "path": path}), answered=False)
            yield compile_
        finally:
            process.kill()
            process.communicate()


def search_path() -> list[str]:
    """Where another process finds what this one has imported.

    In an interactive session "" stands for the folder that it is in. That may be where this package
    comes from, while another copy is installed; and it may have been left since.
    """
    path = [entry or os.curdir for entry in sys.path]
    root = str(_HERE.parents[2])
    return path if root in path else [*path, root]


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


class _Announcer:
    """Says on stderr that kernels are being compiled: at once on a terminal, where the line is
    updated, elsewhere once and only if it takes over a second."""

    def __init__(self, isa: ISA) -> None:
        self._isa = isa
        self._start_s = time.monotonic()
        self._said = False

    def __call__(self, done: int, total: int, name: str) -> None:
        kernels = "1 kernel" if total == 1 else f"{total} kernels"
        text = f"compiling {kernels} for this CPU ({self._isa.name}), not in the cache yet"
        if sys.stderr is None:
            return
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r{text}: {done}/{total}", end=end, file=sys.stderr, flush=True)
        elif not self._said and time.monotonic() - self._start_s > 1.0:
            self._said = True
            print(text, file=sys.stderr, flush=True)


@cache
def _toolchain(isa: ISA) -> str:
    """What else machine code depends on: instruction set, compiler, Python, packages."""
    return " ".join(
        (
            sys.platform,
            platform.machine(),
            isa.cpu,
            isa.features,
            " ".join(sorted(isa.has)),
            f"llvmlite {llvmlite.__version__}",
            *(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
            f"python {platform.python_version()}",
        )
    )


@cache
def source_hash(module: str) -> str:
    """Over the module's source, what it imports from this package, and the compiler's own source.

    Kernels therefore may take constants and functions from `ggmlpy.backends.cpu` alone, block sizes
    from `ggmlpy.graph.types`, and tables from packages whose versions `_toolchain` has. The order
    of files does not count: it is one for every folder that this package may lie in.
    """
    return hashlib.sha256(b"".join(sorted(map(_digest, _sources(module))))).hexdigest()


def _sources(module: str) -> set[Path]:
    first = _file_of(module)
    if first is None:
        raise KernelError(f"kernels must be declared in a file that can be imported, not {module}")
    files: set[Path] = set()
    queue = [first]
    while queue:
        path = queue.pop()
        if path not in files:
            files.add(path)
            queue += _imported_files(path)
    files |= {_HERE / name for name in _COMPILER_SOURCES} | set((_HERE / "simd").glob("*.py"))
    return files | {Path(types.__file__)}


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _imported_files(path: Path) -> list[Path]:
    """The files of this package's modules that the source at `path` imports."""
    found = []
    for base, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        candidates = [base, *(f"{base}.{name}" for name in re.findall(r"\w+", names))]
        found += [file for file in map(_file_of, candidates) if file is not None]
    return found


def _file_of(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    return None if loaded is None or loaded.__file__ is None else Path(loaded.__file__)
