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
_RUNTIME = "emulator.cpp"
_LANGUAGE = ("-std=c++17", "-fPIC", "-fno-plt", "-fvisibility=hidden", "-fno-exceptions", "-w")
# Calls before each load and store, which the runtime defines.
_CHECKS = ("-fsanitize=thread", "-fsanitize=alignment,bounds,integer-divide-by-zero")
_UNIT = (*_CHECKS, "-O1", "-g1", "-ffp-contract=off", "-fno-math-errno", "-DGGMLPY_EMULATED")
# Neither the compiler's own library of checks nor any other: this process has C's.
_LINK = ("-shared", "-nostdlib")
# Functions are not called before and behind each function; reads are checked that writes follow.
_CLANG = (
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
)
_OWN_UNIT = {
    "g++": ("--param=tsan-instrument-func-entry-exit=0",),
    "clang++": _CLANG,
    "zig": ("-fno-sanitize=undefined", *_CHECKS, *_CLANG),
}
# libgcc is for conversions of f16, where the machine has no instructions of its own.
_OWN_LINK = {"g++": ("-lgcc",), "clang++": (), "zig": ("-fno-sanitize=undefined",)}
# The least that gives `fmaf` and f16 instructions of their own, which others emulate.
_V3 = ("avx2", "f16c", "fma", "bmi2")
_SHOWN_LINES = 12  # of a compiler's log, in an error message


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler.

    options       of whatever it compiles here
    unit_options  of units
    link_options  of shared objects
    """

    command: tuple[str, ...]
    version: str
    options: tuple[str, ...]
    unit_options: tuple[str, ...]
    link_options: tuple[str, ...]

    def compile(self, what: str, files: dict[str, str], options: Sequence[str]) -> bytes:
        """A shared object of the first of the files, by name, which may include the others. They
        are texts, since what is compiled must be what the key in the cache is of. Raises
        KernelError if it does not compile."""
        with tempfile.TemporaryDirectory(prefix="ggmlpy-") as name:
            folder = Path(name)
            for file, text in files.items():
                (folder / file).write_text(text, encoding="utf-8")
            first, made, target = (
                folder / file for file in (next(iter(files)), "made.o", "made.so")
            )
            self._run(what, [*options, "-c", "-x", "c++", str(first), "-o", str(made)])
            self._run(what, [str(made), *self.link_options, "-o", str(target)])
            return target.read_bytes()

    def _run(self, what: str, arguments: Sequence[str]) -> None:
        command = [*self.command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            lines = done.stderr.splitlines()
            first = next((i for i, line in enumerate(lines) if "error" in line), 0)
            shown = lines[first : first + _SHOWN_LINES]
            raise KernelError("\n  ".join([f"{what} does not compile (on the CPU):", *shown]))


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
    commands: dict[str, tuple[str, ...]] = {}
    for name in ("g++", "clang++"):
        found = shutil.which(name)
        if found is not None:
            commands[name] = (found,)
    if importlib.util.find_spec("ziglang") is not None:
        commands["zig"] = (sys.executable, "-m", "ziglang", "c++")
    for name, command in commands.items():
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        if done.returncode == 0:
            return Compiler(
                command,
                done.stdout.splitlines()[0],
                _machine(name),
                (*_UNIT, *_OWN_UNIT[name]),
                (*_LINK, *_OWN_LINK[name]),
            )
    return None


def _machine(name: str) -> tuple[str, ...]:
    """Instructions to compile for."""
    if platform.machine() != "x86_64":
        return ()
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    if not words.issuperset(_V3):
        return ()
    return ("-march=x86_64_v3" if name == "zig" else "-march=x86-64-v3",)


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
        files = {**_sources("*.cpp"), **_sources("*.hpp")}
        key = _key([*files.values(), found.version, *options, *_LINK])
        code = self._cache.get(key)
        if code is None:
            code = found.compile(_RUNTIME, files, options)
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
            first = {Path(unit.file).name: source.text(unit.file)}
            files = {**first, **source.headers(unit.file), **_sources("cuda*.hpp")}
            code = found.compile(str(unit), files, [*unit.options, *_unit_options(found)])
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
        header = _sources("cuda*.hpp").values()
        return _key([unit.digest, *header, found.version, *_unit_options(found), *_LINK])


def _unit_options(found: Compiler) -> tuple[str, ...]:
    return (*_LANGUAGE, *found.options, *found.unit_options)


@cache
def _sources(pattern: str) -> dict[str, str]:
    """Files of the emulation, by name."""
    paths = sorted(_FOLDER.glob(pattern))
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _key(made_from: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:40]
