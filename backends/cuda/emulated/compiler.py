"""Compiled units for the CPU, by whatever C++ compiler there is, in a cache on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cuda import source
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.progress import tell
from ggmlpy.errors import BackendError, KernelError

_FOLDER = Path(__file__).parent
_RUNTIME = _FOLDER / "emulator.cpp"
_LANGUAGE = ("-std=c++17", "-fPIC", "-fno-plt", "-shared", "-fvisibility=hidden", "-w")
# Calls before each load and store, which the runtime defines: no library of the compiler is linked.
_CHECKS = ("-fsanitize=thread", "-fsanitize=alignment,bounds,integer-divide-by-zero")
_LIBRARIES = ("-nodefaultlibs", "-lm", "-lc", "-lgcc")
_UNIT = (*_CHECKS, "-O1", "-g1", "-ffp-contract=off", "-fno-math-errno", "-DGGMLPY_EMULATED")
_NO_CALLS_ROUND_FUNCTIONS = {
    "g++": ("--param=tsan-instrument-func-entry-exit=0",),
    "clang++": ("-mllvm", "-tsan-instrument-func-entry-exit=0"),
}
# The least that gives `fmaf` and f16 instructions of their own, which others emulate.
_V3 = ("avx2", "f16c", "fma", "bmi2")
_SHOWN_LINES = 12  # of a compiler's log, in an error message


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler.

    options       of whatever it compiles here
    unit_options  of units
    """

    command: tuple[str, ...]
    version: str
    options: tuple[str, ...]
    unit_options: tuple[str, ...]

    def compile(self, what: str, path: Path, options: Sequence[str]) -> bytes:
        """A shared object. Raises KernelError if the source does not compile."""
        with tempfile.TemporaryDirectory(prefix="ggmlpy-") as folder:
            target = Path(folder) / "made.so"
            language = ["-x", "c++", str(path), "-x", "none"]
            command = [*self.command, *language, *options, "-o", str(target)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if done.returncode:
                lines = done.stderr.splitlines()
                first = next((i for i, line in enumerate(lines) if "error" in line), 0)
                shown = lines[first : first + _SHOWN_LINES]
                raise KernelError("\n  ".join([f"{what} does not compile (on the CPU):", *shown]))
            return target.read_bytes()


def available() -> str | None:
    """Why kernels cannot be emulated here; None where they can."""
    if sys.platform != "linux":
        return "emulated CUDA kernels run on Linux only"
    if compiler() is None:
        return (
            "emulated CUDA kernels need a C++ compiler: install g++ or clang++"
            " (apt install g++), or pip install ziglang"
        )
    return None


@cache
def compiler() -> Compiler | None:
    """g++, else clang++, else Zig's."""
    commands: list[tuple[str, ...]] = []
    for name in ("g++", "clang++"):
        found = shutil.which(name)
        if found is not None:
            commands.append((found,))
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "c++"))
    for command in commands:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        if done.returncode == 0:
            version = done.stdout.splitlines()[0]
            own = _NO_CALLS_ROUND_FUNCTIONS.get(Path(command[0]).name, ())
            return Compiler(command, version, _machine(), (*_UNIT, *own))
    return None


def _machine() -> tuple[str, ...]:
    """Instructions to compile for."""
    if platform.machine() != "x86_64":
        return ()
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    return ("-march=x86-64-v3",) if words.issuperset(_V3) else ()


def required() -> Compiler:
    """The compiler. Raises BackendError if there is none."""
    problem = available()
    found = compiler()
    if problem is not None or found is None:
        raise BackendError(problem or "no compiler")
    return found


class Objects:
    """Shared objects of the runtime and of units: from the cache, else compiled."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache or Cache(part="cuda-emulated")

    def runtime(self) -> bytes:
        """The runtime."""
        found = required()
        options = (*_LANGUAGE, "-O2", *found.options)
        key = _key([_sources("*.cpp"), _sources("*.hpp"), found.version, *options])
        code = self._cache.get(key)
        if code is None:
            code = found.compile(_RUNTIME.name, _RUNTIME, options)
            self._cache.put(key, code)
        return code

    def units(self, units: Iterable[Unit]) -> dict[Unit, bytes]:
        """The code of each unit. Raises KernelError if one does not compile."""
        keys = {unit: self._unit_key(unit) for unit in units}
        cached = self._cache.get_all(keys.values())
        done = {unit: cached[key] for unit, key in keys.items() if key in cached}
        missing = [unit for unit in keys if unit not in done]
        if missing:
            done |= self._compile(missing, keys)
            self._cache.drop_unused()
        return {unit: done[unit] for unit in keys}

    def _compile(self, units: Sequence[Unit], keys: dict[Unit, str]) -> dict[Unit, bytes]:
        done: dict[Unit, bytes] = {}
        what = "compiling CUDA kernels for the CPU"
        found = required()
        tell(what, 0.0)

        def work(unit: Unit) -> bytes:
            path = source.FOLDER / unit.file
            code = found.compile(str(unit), path, [*unit.options, *_unit_options(found)])
            self._cache.put(keys[unit], code)
            return code

        with ThreadPoolExecutor(min(default_n_threads(), len(units))) as pool:
            try:
                with starting_threads():
                    futures = {unit: pool.submit(work, unit) for unit in units}
                for unit, future in futures.items():
                    done[unit] = future.result()
                    tell(what, len(done) / len(units))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after an error or an interrupt
        return done

    def _unit_key(self, unit: Unit) -> str:
        found = required()
        return _key([unit.digest, _sources("cuda*.hpp"), found.version, *_unit_options(found)])


def _unit_options(found: Compiler) -> tuple[str, ...]:
    folders = (f"-I{source.FOLDER}", f"-I{_FOLDER}")
    return (*_LANGUAGE, *found.options, *found.unit_options, *folders, *_LIBRARIES)


@cache
def _sources(pattern: str) -> str:
    """Files of the emulation, as text."""
    return "\0".join(path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob(pattern)))


def _key(made_from: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:40]
