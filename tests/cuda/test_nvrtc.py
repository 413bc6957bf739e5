"""NVRTC compiles every kernel to machine code for GPUs old and new, without warnings and without
registers that spill; and what surrounds it: the cache, messages, the choice of an architecture.

No GPU is needed, and none is used: that the code runs is not shown here.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from ggmlpy.backends.cpu.cache import Cache, KernelCacheWarning
from ggmlpy.backends.cuda import source
from ggmlpy.backends.cuda.cubins import Cubins
from ggmlpy.backends.cuda.machine_code import KernelReport, report, reports, table
from ggmlpy.backends.cuda.nvrtc import Nvrtc, compile_unit, nvrtc, supported_archs
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.common.progress import listening
from ggmlpy.errors import BackendError, KernelError

MAX_LOCAL_BYTES = 64  # of a thread: the reduction of large arguments of sin and cos takes 40
MAX_REGISTERS = 255

SOURCE = """
#include "common.cuh"
struct Args { Tensor y; Tensor x; };
KERNEL(NAME, Args, 64) {
    DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = ((const float*)args.x.data)[threadIdx.x];
    ((float*)args.y.data)[threadIdx.x] = block_sum<64>(shared[63 - threadIdx.x]);
}
"""


def _installed() -> Nvrtc | None:
    try:
        return nvrtc()
    except BackendError:
        return None


pytestmark = pytest.mark.skipif(
    _installed() is None, reason="NVRTC is not installed (pip install 'ggmlpy[dev]')"
)


def all_units() -> list[Unit]:
    """What the backend can launch; while it has no table of kernels, the files without defines."""
    try:
        kernel = importlib.import_module("ggmlpy.backends.cuda.kernel")
    except ModuleNotFoundError:
        return [Unit(path.name) for path in sorted(source.FOLDER.glob("*.cu"))]
    units: Iterable[Unit] = kernel.all_units()
    return sorted(set(units), key=str)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unit:
    """A unit of one kernel, in a folder of kernels of its own, where others may be written."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "common.cuh").write_text((source.FOLDER / "common.cuh").read_text())
    (folder / "small.cu").write_text(SOURCE)
    monkeypatch.setattr(source, "FOLDER", folder)
    forget(monkeypatch)
    return Unit("small.cu", (("NAME", "small"),))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are read again, in this test only."""
    text = source.text.__wrapped__
    included = source.included.__wrapped__
    monkeypatch.setattr(source, "text", text)
    monkeypatch.setattr(source, "included", included)


# --- every kernel ---


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "newest"])
def test_every_kernel_compiles_without_warnings_and_does_not_spill(arch: str) -> None:
    units = all_units()
    if not units:
        pytest.skip("there are no kernels yet")
    known = nvrtc()
    arch = known.arch_for(known.capabilities[-1]) if arch == "newest" else arch
    compiled = Cubins(warnings_are_errors=True).load(units, arch)
    found = {unit: reports(compiled[unit]) for unit in units}
    assert all(found.values()), "a unit without a kernel"
    bad = [f"{u}\n{table(kernels)}" for u, kernels in found.items() if not _is_good(kernels)]
    assert not bad, "\n".join([f"{arch}: these take too much:", *bad])


def _is_good(kernels: list[KernelReport]) -> bool:
    return all(k.local_bytes <= MAX_LOCAL_BYTES and k.registers <= MAX_REGISTERS for k in kernels)


# --- the compiler ---


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_unit_becomes_machine_code(small: Unit, arch: str) -> None:
    assert [kernel.name for kernel in reports(compile_unit(small, arch))] == ["small"]


def test_for_gpus_to_come_there_is_ptx(small: Unit) -> None:
    newest = nvrtc().capabilities[-1]
    arch = nvrtc().arch_for((newest[0] + 5, 0))
    assert arch == f"compute_{newest[0]}{newest[1]}"
    code = compile_unit(small, arch)
    assert b".entry small" in code
    assert code.endswith(b"\0")  # as the driver wants it


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")],
)
def test_a_gpu_gets_its_own_instructions(capability: tuple[int, int], arch: str) -> None:
    assert nvrtc().arch_for(capability) == arch


def test_a_gpu_that_is_unknown_gets_those_of_its_generation() -> None:
    assert nvrtc().arch_for((9, 7)) == "sm_90"


def test_a_gpu_that_is_too_old_is_said_to_be() -> None:
    with pytest.raises(BackendError, match=r"and the GPU is sm_30"):
        nvrtc().arch_for((3, 0))


def test_the_architectures_are_those_of_the_library() -> None:
    archs = supported_archs()
    assert {"sm_80", "sm_90"} < set(archs)
    assert list(archs) == sorted(archs, key=lambda arch: int(arch[3:]))


def test_a_source_that_does_not_compile_says_where(small: Unit) -> None:
    wrong = Unit("small.cu", (("NAME", "itn x"),))
    with pytest.raises(KernelError, match=r"(?s)small\.cu -DNAME=itn x does not.*error:"):
        compile_unit(wrong, "sm_80")


def test_an_architecture_that_is_none_is_an_error(small: Unit) -> None:
    with pytest.raises(KernelError, match="sm_1234"):
        compile_unit(small, "sm_1234")


def test_without_the_library_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ggmlpy.backends.cuda.nvrtc._paths", lambda majors: ["/none/libnvrtc.so"])
    with pytest.raises(BackendError, match=r"pip install 'ggmlpy\[cuda13\]'.*libnvrtc.so"):
        nvrtc.__wrapped__()


def test_a_library_that_is_another_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ["libc.so.6", nvrtc().path]
    monkeypatch.setattr("ggmlpy.backends.cuda.nvrtc._paths", lambda majors: paths)
    assert nvrtc.__wrapped__().path == paths[1]


# --- what kernels take ---


def test_a_report_says_what_the_compiler_says(small: Unit) -> None:
    """The same numbers as in the log. Shared memory holds two warps' sums, padded to 16 bytes."""
    compiled = nvrtc().compile_text(
        "small.cu",
        source.text("small.cu"),
        [*small.options, "-arch=sm_80", "-std=c++17", "--ptxas-options=-v"],
        source.headers("small.cu"),
    )
    (kernel,) = reports(compiled.code)
    assert f"Used {kernel.registers} registers" in compiled.log
    assert "0 bytes stack frame" in compiled.log
    assert f" {kernel.shared_bytes} bytes smem" in compiled.log
    assert (kernel.local_bytes, kernel.shared_bytes) == (0, 16)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_local_and_shared_memory_are_reported(small: Unit, arch: str, tmp_path: Path) -> None:
    (source.FOLDER / "large.cu").write_text(
        '#include "common.cuh"\n'
        "struct Args { float* y; int n; };\n"
        "KERNEL(large, Args, 64) {\n"
        "    __shared__ float s[500];\n"
        "    float v[100];\n"
        "    for (int i = 0; i < 100; ++i) v[i] = args.y[i * args.n + threadIdx.x];\n"
        "    for (int i = 0; i < args.n; ++i) v[i * 7 % 100] += v[i * 3 % 100];\n"
        "    s[threadIdx.x] = v[args.n];\n"
        "    __syncthreads();\n"
        "    args.y[threadIdx.x] = s[args.n];\n"
        "}\n"
    )
    (kernel,) = report(Unit("large.cu"), arch, Cubins(Cache(tmp_path, "cuda")))
    assert (kernel.local_bytes, kernel.shared_bytes) == (400, 2000)
    assert 0 < kernel.registers <= 255
    assert "large" in table([kernel])


def test_a_report_of_something_else_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        reports(b"PTX")


# --- the cache ---


def named(n: int) -> list[Unit]:
    return [Unit("small.cu", (("NAME", f"small_{i}"),)) for i in range(n)]


def test_units_are_compiled_once_and_with_progress(
    small: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[tuple[str, float]] = []
    cache = Cache(tmp_path, "cuda")
    with listening(lambda what, share: shares.append((what, share))):
        first = Cubins(cache).load(named(4), "sm_80")
    assert [share for _, share in shares] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert {what for what, _ in shares} == {"compiling CUDA kernels for sm_80"}
    assert {path.suffix for path in (tmp_path / "cuda").iterdir()} == {".o"}

    def compile_(*args: object) -> None:
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(Nvrtc, "compile", compile_)
    assert Cubins(cache).load(named(4), "sm_80") == first
    with pytest.raises(AssertionError):
        Cubins(cache).load(named(1), "sm_90a")


def test_a_header_that_changed_is_another_key(
    small: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubins = Cubins(Cache(tmp_path, "cuda"))
    cubins.load([small], "sm_80")
    with (source.FOLDER / "common.cuh").open("a") as header:
        header.write("// changed\n")
    cubins.load([small], "sm_80")
    assert len(list((tmp_path / "cuda").iterdir())) == 2


def test_warnings_are_errors_where_that_is_asked_for(small: Unit, tmp_path: Path) -> None:
    text = SOURCE.replace("DYNAMIC", "int unused_variable;\nDYNAMIC", 1)
    (source.FOLDER / "small.cu").write_text(text)
    cache = Cache(tmp_path, "cuda")
    assert Cubins(cache).load([small], "sm_80")
    with pytest.raises(KernelError, match="unused_variable"):
        Cubins(cache, warnings_are_errors=True).load([small], "sm_80")


def test_one_that_does_not_compile_ends_the_work(small: Unit, tmp_path: Path) -> None:
    wrong = Unit("small.cu", (("NAME", "1"),))
    before = threading.active_count()
    with pytest.raises(KernelError, match="does not compile"):
        Cubins(Cache(tmp_path, "cuda")).load([wrong, *named(3)], "sm_80")
    assert threading.active_count() == before


def test_where_nothing_can_be_kept_there_is_a_warning(small: Unit, tmp_path: Path) -> None:
    (tmp_path / "cuda").write_text("not a folder")
    cubins = Cubins(Cache(tmp_path, "cuda"))
    with pytest.warns(KernelCacheWarning, match="kept in .*: it is not a folder") as warned:
        assert cubins.load([small], "sm_80")
    assert [warning.filename for warning in warned] == [__file__]
    assert cubins.load([small], "sm_80")  # and not a second one
