"""Machine code of units, from the cache on disk, else compiled: several at a time, with progress.

The cache is that of CPU kernels with a folder of its own (`backends/cpu/cache.py`): code is used
if this user alone can have written it. Its keys hold everything that the code is made from: the
unit with its headers, the architecture, NVRTC's version and options.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import cached_property

from ggmlpy.backends.cpu.cache import Cache, KernelCacheWarning
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cuda.nvrtc import MAJORS, OPTIONS, Nvrtc, nvrtc
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.common.callers import warn_caller
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.progress import tell
from ggmlpy.errors import KernelError


class Cubins:
    """Compiled units. Safe to use from several threads.

    max_major               of CUDA that the driver can load code of
    warnings_are_errors     KernelError for a unit that the compiler warns of: for tests, since
                            another version of the compiler may warn of something else
    """

    def __init__(
        self,
        cache: Cache | None = None,
        *,
        max_major: int = MAJORS[0],
        warnings_are_errors: bool = False,
    ) -> None:
        self._cache = cache or Cache(part="cuda")
        self._max_major = max_major
        self._warnings_are_errors = warnings_are_errors
        self._warned = False

    @cached_property
    def compiler(self) -> Nvrtc:
        """Raises BackendError if there is none."""
        return nvrtc(self._max_major)

    def load(self, units: Iterable[Unit], arch: str) -> dict[Unit, bytes]:
        """The code of each unit. Raises KernelError if one does not compile."""
        keys = {unit: self._key(unit, arch) for unit in units}
        found = self._cache.get_all(keys.values())
        done = {unit: found[key] for unit, key in keys.items() if key in found}
        missing = [unit for unit in keys if unit not in done]
        if missing:
            done |= self._compile({unit: keys[unit] for unit in missing}, arch)
            self._cache.drop_unused()
            self._warn_if_not_kept()
        return {unit: done[unit] for unit in keys}

    def _compile(self, keys: dict[Unit, str], arch: str) -> dict[Unit, bytes]:
        """Compiles units and stores each as it is done."""
        done: dict[Unit, bytes] = {}
        what = f"compiling CUDA kernels for {arch}"
        compiler = self.compiler
        tell(what, 0.0)

        def work(unit: Unit) -> tuple[Unit, bytes]:
            compiled = compiler.compile(unit, arch)
            if self._warnings_are_errors and compiled.log:
                raise KernelError(f"{unit}: warnings for {arch}:\n{compiled.log}")
            self._cache.put(keys[unit], compiled.code)
            return unit, compiled.code

        with ThreadPoolExecutor(min(default_n_threads(), len(keys))) as pool:
            futures: list[Future[tuple[Unit, bytes]]] = []
            try:
                with starting_threads():
                    futures += [pool.submit(work, unit) for unit in keys]
                for future in as_completed(futures):
                    unit, code = future.result()
                    done[unit] = code
                    tell(what, len(done) / len(keys))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after an error or an interrupt
        return done

    def _key(self, unit: Unit, arch: str) -> str:
        compiler = self.compiler
        made_from = [unit.digest, arch, compiler.version_text, *OPTIONS]
        if self._warnings_are_errors:
            made_from.append("without warnings")
        return hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:40]

    def _warn_if_not_kept(self) -> None:
        problem, self._cache.problem = self._cache.problem, None
        if problem is not None and not self._warned:
            self._warned = True
            warn_caller(
                f"compiled kernels cannot be kept in {self._cache.folder}:"
                f" {problem.strerror or problem}. Each start compiles them again, unless"
                " GGMLPY_CACHE_DIR names a folder that this user alone can write to",
                KernelCacheWarning,
            )
