"""The key of compiled code: all that the code depends on changes it, and nothing else does."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import operator
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import pytest

import ggmlpy.backends.cpu.backend  # noqa: F401  (declares all kernels)
from ggmlpy.backends.cpu import kernel
from ggmlpy.backends.cpu import key as key_module
from ggmlpy.backends.cpu.closure import Closures
from ggmlpy.backends.cpu.isa import ISA, known, select
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.kernels.norm import rms_norm_f32
from ggmlpy.backends.cpu.key import Keys
from ggmlpy.backends.cpu.simd.operators import OPERATORS
from ggmlpy.errors import KernelError
from tests.cpu import plan_kernels
from tests.cpu.closures import CPU, ROOT, compiled_with, functions_of, real

GENERIC = select("generic")
BEST = known()[0]
ENTRY: Entry = rms_norm_f32
_TIMES = itertools.count(1_000_000_000)  # in seconds, another for each edit


@pytest.fixture(autouse=True)
def _clear_caches() -> Iterator[None]:
    key_module._toolchain.cache_clear()
    yield
    key_module._toolchain.cache_clear()


def key(entry: Entry = ENTRY, isa: ISA = GENERIC) -> str:
    key_module._toolchain.cache_clear()
    return Keys(isa).key(entry)


def entries() -> list[Entry]:
    return [entry for entry in kernel.all_entries() if entry.module.startswith("ggmlpy.")]


def keys() -> dict[Entry, str]:
    of_best = Keys(BEST)
    return {entry: of_best.key(entry) for entry in entries()}


@cache
def compiled_files(entry: Entry) -> set[Path]:
    return {real(f.__code__.co_filename) for f in compiled_with(entry, BEST)}


def test_the_key_of_the_same_is_the_same() -> None:
    assert key() == key()


@pytest.mark.parametrize("isa", [BEST, *known()[1:][-1:]], ids=lambda isa: isa.name)
def test_all_that_is_compiled_into_a_kernel_counts(isa: ISA) -> None:
    closures, n_functions = Closures(isa), []
    for entry in entries():
        functions = compiled_with(entry, isa)
        n_functions.append(len(functions))
        missing = functions - set(closures.functions(entry))
        assert not missing, (entry, missing)
    assert len(n_functions) > 100
    assert max(n_functions) > 50


@pytest.fixture(scope="module")
def before() -> dict[Entry, str]:
    key_module._toolchain.cache_clear()
    return keys()


@pytest.mark.parametrize(
    ("files", "least", "most"),
    [
        (["kernels/norm.py"], 6, 12),  # its kernels, and those with a sum before it
        (["kernels/attention_softmax.py"], 6, 40),
        (["kernels/dequantize_iq.py"], 10, 60),
        (["kernels/matmul_units.py"], 30, 60),
        (["formats/ternary.py"], 4, 20),  # two formats of the 21 that products have
        (["rows.py"], 250, 400),
        (["simd/files.py"], 10, 40),  # rows of embeddings are read from the file
        (["simd/amx.py"], 20, 250),
        # What chooses, caches, loads and runs kernels.
        (["builder.py", "backend.py", "packing.py", "jit.py", "linker.py", "plan.py"], 0, 0),
    ],
)
def test_an_edit_changes_the_keys_of_what_has_it_compiled_in(
    files: list[str],
    least: int,
    most: int,
    before: dict[Entry, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every function in the files is edited, and no other kernel's key may change."""
    paths = {real(CPU / file) for file in files}
    edited = functions_of(paths)
    assert {real(function.__code__.co_filename) for function in edited} == paths
    for function in edited:
        code = function.__code__
        monkeypatch.setattr(function, "__code__", code.replace(co_consts=(*code.co_consts, 0.5)))
    after = keys()
    changed = {entry for entry in before if before[entry] != after[entry]}
    assert changed == {entry for entry in before if paths & compiled_files(entry)}
    assert least <= len(changed) <= most


_BACKENDS = "ggmlpy.backends."  # other tests of the process may have imported more kernels
_PRINT_KEYS = """
import json
import ggmlpy.backends.cpu.backend
from ggmlpy.backends.cpu import isa, kernel, key
keys = key.Keys(isa.known()[0])
print(json.dumps({f"{e.module} {e.name}": keys.key(e) for e in kernel.all_entries()}))
"""


def keys_of_copy(root: Path) -> dict[str, str]:
    """The keys of the package in a folder, in a process that imports it."""
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_KEYS],
        env={"PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the package, and its keys: those of this process too, wherever it lies."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "data")
    shutil.copytree(ROOT / "ggmlpy", root / "ggmlpy", ignore=ignored)
    of_copy = keys_of_copy(root)
    key_module._toolchain.cache_clear()
    own = {entry: key for entry, key in keys().items() if entry.module.startswith(_BACKENDS)}
    assert of_copy == {f"{entry.module} {entry.name}": key for entry, key in own.items()}
    return root, of_copy


@pytest.mark.parametrize(
    ("file", "edits", "names"),
    [
        # One helper of several: its kernels, and the fused ones that have it too.
        (
            "kernels/norm.py",
            {"np.float32(1) / sqrt(mean_square": "np.float32(2) / sqrt(mean_square"},
            {"rms_of_row"},
        ),
        # A constant: those that name it, wherever they are.
        ("kernels/segments.py", {"\nSEGMENT = ": "\nSEGMENT = 2 * "}, {"SEGMENT"}),
        # What kernels do not depend on: text, lines, and which nodes they run.
        (
            "kernels/norm.py",
            {
                "Normalisation of rows.": "Rows.\n\nOn more lines.",
                "    mean = sum_row": "    # A comment.\n    mean = sum_row",
                "What norm takes off": "What it takes off",
                "rows_ok(node)": "rows_ok(node) and True",
            },
            set(),
        ),
    ],
)
def test_an_edit_of_source_changes_the_keys_of_what_names_it(
    file: str,
    edits: dict[str, str],
    names: set[str],
    copied: tuple[Path, dict[str, str]],
) -> None:
    root, before = copied
    path = root / "ggmlpy" / "backends" / "cpu" / file
    text = edited = path.read_text(encoding="utf-8")
    for old, new in edits.items():
        assert edited.count(old) == 1, old
        edited = edited.replace(old, new)
    _write(path, edited)
    try:
        after = keys_of_copy(root)
    finally:
        _write(path, text)
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    want = {f"{entry.module} {entry.name}" for entry in entries() if names & named_in(entry)}
    assert changed == want
    assert bool(want) == bool(names)


def _write(path: Path, text: str) -> None:
    """With a time of its own: Python takes a file of the same second and size for unchanged."""
    path.write_text(text, encoding="utf-8")
    time = next(_TIMES)
    os.utime(path, (time, time))


def named_in(entry: Entry) -> set[str]:
    """What the functions compiled into an entry are called, and name."""
    functions = compiled_with(entry, BEST)
    return {name for f in functions for name in (f.__name__, *f.__code__.co_names)}


def edit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is another from now on."""
    edited, read = file.resolve(), Path.read_bytes
    assert edited.is_file()
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda path: read(path) + (b"\n" if path.resolve() == edited else b""),
    )


@pytest.mark.parametrize("file", ["simd/core.py", "frontend.py", "numba_parts.py", "codegen.py"])
def test_what_compiles_counts(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    edit(CPU / file, monkeypatch)
    assert key() != before


def test_operators_count_that_no_import_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(plan_kernels.count)
    emit = OPERATORS[operator.mul].emit
    monkeypatch.setattr(emit, "__defaults__", (None,))
    assert key(plan_kernels.count) != before


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


def test_kernels_must_be_in_a_file() -> None:
    """A process that compiles could not import what was typed in."""
    with pytest.raises(KernelError, match=r"in a file that can be imported, not builtins"):
        key(replace(ENTRY, home="builtins"))
