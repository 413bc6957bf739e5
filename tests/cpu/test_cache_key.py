"""The key of compiled code: all that the code depends on changes it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import pytest

import ggmlpy.backends.cpu.backend  # noqa: F401  (declares all kernels)
from ggmlpy.backends.cpu import jit, kernel
from ggmlpy.backends.cpu.isa import ISA, select
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import Choice, Entry, Inline
from ggmlpy.backends.cpu.kernels.norm import rms_norm_f32
from ggmlpy.backends.cpu.simd.core import Intrinsic
from tests.cpu import plan_kernels

ROOT = Path(__file__).parents[2]
CPU = ROOT / "backends" / "cpu"
GENERIC = select("generic")
ENTRY: Entry = rms_norm_f32


def clear_caches() -> None:
    for cached in (jit.source_hash, jit._digest, jit._imported_files, jit._toolchain):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def _clear_caches() -> Iterator[None]:
    clear_caches()
    yield
    clear_caches()


def key(entry: Entry = ENTRY, isa: ISA = GENERIC) -> str:
    clear_caches()
    (job,) = Jit(isa)._jobs([entry])
    return job.key


def test_the_key_of_the_same_is_the_same() -> None:
    assert key() == key()


@pytest.mark.parametrize(
    "file",
    [
        "kernels/norm.py",  # the kernel itself
        "kernels/reduce.py",  # what it has inlined, and what that has
        "rows.py",
        "simd/arith.py",
        "simd/core.py",
        "jit.py",  # what compiles it, and how
        "kernel.py",
        "frontend.py",
        "codegen.py",
        "compile_worker.py",
        "../../ggmlpy/graph/types.py",  # sizes of blocks
    ],
)
def test_source_counts(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    edit(CPU / file, monkeypatch)
    assert key() != before


def edit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is another from now on."""
    edited, read = file.resolve(), Path.read_bytes
    assert edited.is_file()
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda path: read(path) + (b"\n" if path.resolve() == edited else b""),
    )


def test_operators_count_that_no_import_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(plan_kernels.count)
    edit(CPU / "simd" / "arith.py", monkeypatch)
    assert key(plan_kernels.count) != before


def test_every_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    paths, read = [], Path.read_bytes

    def noting(path: Path) -> bytes:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", noting)
    key()
    assert len(paths) == len(set(paths)) > 10


def compiled_with(entry: Entry) -> set[Path]:
    """The files of all that numba compiles for an entry, found as numba does: by the names that
    its code has."""
    functions, seen = [entry.function], set()
    while functions:
        function = functions.pop()
        if function in seen:
            continue
        seen.add(function)
        for value in named_in(function):
            if isinstance(value, Choice):
                functions += [value._there.function, value._elsewhere.function]
            elif isinstance(value, Inline):
                functions.append(value.function)
            elif isinstance(value, Intrinsic):
                functions.append(value.emit)
    return {real(function.__code__.co_filename) for function in seen}


@cache
def real(path: str | Path) -> Path:
    return Path(path).resolve()


def named_in(function: Any) -> list[Any]:
    """Values of a function's globals and closure, and of their attributes that it names."""
    assert isinstance(function, FunctionType)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    names = function.__code__.co_names
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += cells
    return values + [getattr(v, name) for v in values for name in names if hasattr(v, name)]


def test_all_that_is_compiled_into_a_kernel_counts() -> None:
    sources, n_files = cache(jit._sources), []
    for entry in kernel.all_entries():
        if entry.module.startswith("ggmlpy."):
            files = compiled_with(entry)
            n_files.append(len(files))
            counted = set(map(real, sources(entry.module)))
            assert files <= counted, (entry, files - counted)
    assert len(n_files) > 100
    assert max(n_files) > 5


@pytest.mark.parametrize("package", ["numba", "numpy", "gguf"])
def test_versions_of_packages_count(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, version = key(), importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0" if name == package else version(name)
    )
    assert key() != before


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (llvmlite, "__version__", "0"),
        (platform, "python_version", lambda: "3.0"),
        (platform, "machine", lambda: "pdp11"),
        (sys, "platform", "plan9"),
    ],
)
def test_the_system_counts(
    where: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    monkeypatch.setattr(where, name, value)
    after = key()
    monkeypatch.undo()
    assert after != before


@pytest.mark.parametrize("change", [{"cpu": "x"}, {"features": "+x"}, {"has": frozenset({"x"})}])
def test_the_instruction_set_counts(change: dict[str, Any]) -> None:
    assert key(isa=replace(GENERIC, **change)) != key()


def test_the_name_counts() -> None:
    assert key(replace(ENTRY, name="other")) != key()
