"""Compiling, the object cache, and what a kernel must not do."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu import compiling
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.cache import Cache, KernelCacheWarning
from ggmlpy.backends.cpu.compiling import Announcer, Job
from ggmlpy.backends.cpu.isa import ISA, select
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.linker import Linker
from ggmlpy.errors import BackendError, KernelError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import from_numpy
from ggmlpy.sched.executable import Executable
from tests.cpu import plan_kernels, simd_kernels
from tests.cpu.conftest import ISAS
from tests.processes import no_start, running

ROOT = Path(__file__).parents[2]
Progress = list[tuple[int, int, str]]


ENTRIES: list[Entry] = [plan_kernels.count, plan_kernels.check_limit]


def load_all(cache: Cache, isa: str = "generic") -> Progress:
    progress: Progress = []
    jit = Jit(isa, cache=cache, progress=lambda *args: progress.append(args))
    addresses = jit.load(ENTRIES)
    assert list(addresses) == ENTRIES
    assert all(addresses.values())
    assert jit.address(plan_kernels.count) == addresses[plan_kernels.count]
    return progress


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What compiling ENTRIES gives, by name: compiled once, since the processes take seconds."""
    cache = Cache(tmp_path_factory.mktemp("compiled"))
    load_all(cache)
    jobs = Jit("generic", cache=cache)._jobs(ENTRIES)
    return {job.entry.name: cache.get(job.key) or b"" for job in jobs}


@pytest.fixture
def stub_worker(objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling ENTRIES for "generic" is looking them up."""

    @contextmanager
    def worker(isa: ISA) -> Iterator[Callable[[Job], bytes]]:
        yield lambda job: objects[job.entry.name]

    monkeypatch.setattr(compiling, "worker", worker)


def test_the_first_run_compiles_and_the_second_only_loads(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    progress = load_all(cache)
    assert [(done, total) for done, total, _ in progress] == [(0, 2), (1, 2), (2, 2)]
    assert sorted(name for _, _, name in progress) == ["", "check_limit", "count"]
    assert load_all(cache) == []


def test_instruction_sets_have_objects_of_their_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for isa in ISAS:
        assert len(load_all(cache, isa)) == 3
    assert len(list(cache.folder.iterdir())) == 2 * len(ISAS)


@pytest.mark.usefixtures("stub_worker")
def test_what_is_not_used_any_more_is_dropped_when_something_is_compiled(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("0" * 40, b"of an earlier version")
    os.utime(cache.path("0" * 40), (0, 0))
    load_all(cache)
    assert len(list(cache.folder.iterdir())) == len(ENTRIES)


@pytest.mark.usefixtures("stub_worker")
def test_a_damaged_cache_is_compiled_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    load_all(cache)
    for path in cache.folder.iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[:-100] + bytes(100))
    assert len(load_all(cache)) == 3
    assert load_all(cache) == []


@pytest.mark.usefixtures("stub_worker")
@pytest.mark.parametrize("rubbish", [b"", b"no object", b"\x7fELF" + bytes(200), None])
def test_a_whole_object_that_cannot_be_loaded_is_compiled_again(
    tmp_path: Path, rubbish: bytes | None
) -> None:
    """None: a whole one, but of another function."""
    cache = Cache(tmp_path)
    load_all(cache)
    one, other = (path.stem for path in cache.folder.iterdir())
    cache.put(one, cache.get(other) or b"" if rubbish is None else rubbish)
    assert len(load_all(cache)) == 3
    assert load_all(cache) == []


@pytest.mark.usefixtures("stub_worker")
def test_objects_that_have_changed_places_are_compiled_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    load_all(cache)
    one, other = cache.folder.iterdir()
    one.rename(tmp_path / "between")
    other.rename(one)
    (tmp_path / "between").rename(other)
    assert len(load_all(cache)) == 3
    assert load_all(cache) == []


@pytest.mark.usefixtures("stub_worker")
@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_a_folder_that_is_not_trusted_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", lambda folder, mode: None)
    jit = Jit("generic", cache=cache)
    with pytest.warns(KernelCacheWarning) as warned:
        jit.address(plan_kernels.count)
        jit.address(plan_kernels.check_limit)
    (warning,) = warned
    assert warning.filename == __file__
    text = rf"{cache.folder}: others may write to it \(mode 0777; chmod 700\)\. .*GGMLPY_CACHE_DIR"
    assert re.search(text, str(warning.message))


@pytest.mark.usefixtures("stub_worker")
def test_without_a_cache_folder_everything_is_compiled_each_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = Cache(blocked)
    for _ in range(2):
        with pytest.warns(
            KernelCacheWarning, match=r"cannot be kept in .*file.cpu: Not a directory"
        ):
            assert len(load_all(cache)) == 3


def test_numba_stays_out_of_the_process_that_runs_kernels(tmp_path: Path) -> None:
    """Cold and warm, from a script without a `__main__` guard, and from two processes at once."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from ggmlpy.backends.cpu.jit import Jit\n"
        "from tests.cpu import plan_kernels\n"
        "assert Jit('generic').address(plan_kernels.count)\n"
        "assert not any('numba' in module for module in sys.modules)\n"
        "assert Jit('generic').uses_llvm == ('llvmlite.binding' in sys.modules)\n"
    )
    environment = {"GGMLPY_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for n_at_once in (2, 1):
        with ExitStack() as stack:
            command = [sys.executable, str(script)]
            started = [running(command, env=environment) for _ in range(n_at_once)]
            processes = [stack.enter_context(process) for process in started]
            assert [process.wait() for process in processes] == [0] * n_at_once
    assert len(list((tmp_path / "cache" / "cpu").iterdir())) == 1


def test_a_kernel_must_not_raise(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"plan_kernels.raises raises; a kernel must report"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.raises)


def test_a_kernel_must_not_call_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"for generic calls PyErr_SetString: a kernel must"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.calls_python)


def test_a_kernel_must_not_allocate(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"(?s)allocates does not compile.*plan_kernels.py"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.allocates)


def test_a_kernel_that_does_not_type_says_where(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"(?s)does_not_type does not compile.*plan_kernels.py"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.does_not_type)
    assert Cache(tmp_path).folder.exists() is False  # nothing of it is kept


def test_an_error_ends_the_compiling_of_the_others(tmp_path: Path) -> None:
    progress: Progress = []
    jit = Jit("generic", cache=Cache(tmp_path), progress=lambda *args: progress.append(args))
    with pytest.raises(KernelError, match="does_not_type"):
        jit.load([plan_kernels.does_not_type, *simd_kernels.ENTRIES[:2]])
    assert progress[0] == (0, 3, "")
    assert len(progress) <= 3  # in any order, but not all of them


def test_what_another_process_has_compiled_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, cache = simd_kernels.ENTRIES[:6], Cache(tmp_path)
    jit = Jit("generic", cache=cache, progress=lambda *args: None)
    jobs, compiled = jit._jobs(list(entries)), []

    @contextmanager
    def worker(isa: ISA) -> Iterator[Callable[[Job], bytes]]:
        def compile_(job: Job) -> bytes:
            compiled.append(job)
            for each in jobs:
                cache.put(each.key, each.symbol.encode())
            return job.symbol.encode()

        yield compile_

    monkeypatch.setattr(compiling, "worker", worker)
    monkeypatch.setattr(compiling, "default_n_threads", lambda: 1)
    assert jit._compile(jobs) == {job.symbol: job.symbol.encode() for job in jobs}
    assert len(compiled) == 1
    jit._compile(jobs, anew=True)
    assert len(compiled) == 1 + len(jobs)


@pytest.mark.parametrize(("n_cores", "n_workers"), [(1, 1), (2, 2), (64, 3)])
def test_compilers_are_as_many_as_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_cores: int, n_workers: int
) -> None:
    """Not as many as the machine has: each takes 150 MB, and a container may have two cores."""
    started = []

    @contextmanager
    def worker(isa: ISA) -> Iterator[Callable[[object], bytes]]:
        started.append(isa)
        yield lambda job: b""

    monkeypatch.setattr(compiling, "worker", worker)
    monkeypatch.setattr(compiling, "default_n_threads", lambda: n_cores)
    jit = Jit("generic", cache=Cache(tmp_path), progress=lambda *args: None)
    jit._compile(jit._jobs(list(simd_kernels.ENTRIES[:7])))
    assert len(started) == n_workers


def test_without_a_thread_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_start)
    with pytest.raises(BackendError, match="no thread can be started"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.count)


def test_the_c_maths_library_is_there(tmp_path: Path) -> None:
    address = Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.raises_to_power)
    power = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_int64)(address)
    assert power(3.0, 5) == 243.0


def test_a_dead_worker_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(Exception, match=r"(?s)the worker process died.*no such luck"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.count)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(Exception, match="no Python process could be started"):
        Jit("generic", cache=Cache(tmp_path)).address(plan_kernels.count)


def test_a_session_compiles_the_copy_that_it_has_imported(tmp_path: Path) -> None:
    """Interactively and with -c the first entry of sys.path is "", the folder that one is in."""
    ignored = shutil.ignore_patterns("__pycache__", "data")
    shutil.copytree(ROOT / "ggmlpy", tmp_path / "ggmlpy", ignore=ignored)
    runner = tmp_path / "ggmlpy" / "backends" / "cpu" / "runner.py"
    text = runner.read_text(encoding="utf-8")
    assert text.count("    return ticks()\n") == 1
    runner.write_text(text.replace("    return ticks()\n", "    return 42\n"), encoding="utf-8")
    code = (
        "import ctypes, os; from ggmlpy.backends.cpu import jit, runner\n"
        "{leave}address = jit.Jit('generic').address(runner.read_ticks)\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int64)(address)())\n"
    )
    (tmp_path / "elsewhere").mkdir()
    for leave, others in (("", str(ROOT)), ("os.chdir('elsewhere')\n", "")):
        environment = {"GGMLPY_CACHE_DIR": str(tmp_path / f"cache{len(leave)}")}
        done = subprocess.run(
            [sys.executable, "-c", code.format(leave=leave)],
            env=environment | {"PYTHONPATH": others},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "42\n", done.stderr


def test_without_assertions_the_same_is_compiled_as_was_imported(tmp_path: Path) -> None:
    """Under -O functions have other bytecode, here those that write the code of a packing."""
    code = (
        "from ggmlpy.backends.cpu import backend, jit, kernel\n"
        "packing = kernel.entry_of('ggmlpy.backends.cpu.formats.blocks32', 'pack_q4_0')\n"
        "jit.Jit('generic').address(packing)\n"
    )
    environment = {"GGMLPY_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-O", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CHANGING = """
from ggmlpy.backends.cpu.kernel import entry
from ggmlpy.backends.cpu.simd.core import i64
@entry(i64, i64)
def one(x): return {value}
@entry(i64, i64)
def other(x): return {value}
"""


def test_source_that_has_changed_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has hashed what it imported: under that key no other code may be kept."""
    file = tmp_path / "changing_kernels.py"
    file.write_text(CHANGING.format(value=1))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("changing_kernels")
    jit = Jit("generic", cache=Cache(tmp_path))
    try:
        assert jit.address(module.one)
        file.write_text(CHANGING.format(value=1000))
        with pytest.raises(KernelError, match=r"changing_kernels\.py, or what it imports, is not"):
            jit.address(module.other)
        assert len(list(jit.cache.folder.iterdir())) == 1
    finally:
        del sys.modules["changing_kernels"]


def test_what_is_loaded_is_loaded_once_for_all_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is never unloaded: with a copy for every `compute` a process would grow without end."""
    linked, link = [], Linker.link

    def noting(self: Linker, objects: Mapping[str, bytes]) -> dict[str, int]:
        linked.append(objects)
        return link(self, objects)

    def run() -> int:
        for isa in ISAS:
            plan = Executable(
                Graph(ops.neg(from_numpy(np.ones(5, np.float32)))), [CpuBackend(1, isa)]
            )
            plan.run()
        return len(linked)

    monkeypatch.setattr(Linker, "link", noting)
    assert run() == run()


def test_progress_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    announce = Announcer(select("generic"))
    announce(0, 3, "")
    announce(1, 3, "one")
    assert capsys.readouterr().err == ""  # not a terminal, and quick
    announce._start_s -= 2
    announce(2, 3, "two")
    announce(3, 3, "three")
    text = "compiling 3 kernels for this CPU (generic), not in the cache yet\n"
    assert capsys.readouterr().err == text


def test_progress_on_a_terminal_is_one_updated_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    announce = Announcer(select("generic"))
    for done in range(2):
        announce(done, 1, "")
    line = "\rcompiling 1 kernel for this CPU (generic), not in the cache yet: "
    assert capsys.readouterr().err == f"{line}0/1{line}1/1\n"
