"""Who loads code: our loader, and LLVM where that does not know an object. Results are the same."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from ggmlpy import compute, from_bytes, from_numpy, ops
from ggmlpy.backends.cpu import codegen, machine_memory
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.linker import Linker, llvm_bytes
from ggmlpy.errors import BackendError
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import ISAS
from tests.resident import linux, resident_bytes

GENERIC = select("generic")
here = pytest.mark.skipif(not machine_memory.HERE, reason="loads on Linux for x86-64 only")

# The address of a function outside is taken from a table, which the loader does not make.
_ADDRESS = """
declare void @usleep(i32)
define i64 @f() {
  ret i64 ptrtoint (void (i32)* @usleep to i64)
}
"""


def object_code(ir: str) -> bytes:
    return codegen.object_code(llvm.parse_assembly(ir), "f", GENERIC)


@here
def test_what_the_loader_does_not_know_llvm_links() -> None:
    linked = Linker(GENERIC)
    address = linked.link({"f": object_code("define i64 @f() {\n ret i64 5\n}")})["f"]
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(address)() == 5
    assert not linked.uses_llvm
    address = linked.link({"f": object_code(_ADDRESS)})["f"]
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(address)() == llvm.address_of_symbol("usleep")
    assert linked.uses_llvm


# Frees single pages that lie 6 GiB apart where small requests of memory are placed.
_SCATTERED = """
import ctypes
import mmap
from ggmlpy.backends.cpu.linker import _LlvmLinker
from tests.cpu.test_linker import _ADDRESS, GENERIC, object_code

linked, code = _LlvmLinker(GENERIC), object_code(_ADDRESS)
system = ctypes.CDLL(None)
system.mmap.restype = ctypes.c_void_p
system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PRIVATE_ANONYMOUS_NORESERVE = 0x4022
LARGE = (6 << 30) + mmap.PAGESIZE  # not a multiple of 2 MiB, which Linux aligns: holes remain


def reserve(n_bytes):
    return system.mmap(None, n_bytes, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)


while reserve(LARGE) < reserve(mmap.PAGESIZE):
    pass  # a hole for a page was left above
middles = [reserve(LARGE) + (3 << 30) for _ in range(20)]
for middle in middles:
    system.munmap(middle, mmap.PAGESIZE)
function = ctypes.CFUNCTYPE(ctypes.c_int64)(linked.link({"f": code})["f"])
assert function() == ctypes.cast(system.usleep, ctypes.c_void_p).value
"""


@here
def test_llvm_links_where_free_memory_is_scattered() -> None:
    """As where large models are mapped: parts of one object must not end up far from each other."""
    assert subprocess.run([sys.executable, "-c", _SCATTERED]).returncode == 0


def test_what_neither_knows_is_an_error() -> None:
    with pytest.raises(BackendError, match="cannot be loaded"):
        Linker(GENERIC).link({"f": b"\x7fELF" + bytes(200)})


def graphs() -> dict[str, Tensor]:
    """With constants, tables, calls of C's maths, scratch memory and several threads."""
    rng = np.random.default_rng(7)

    def floats(*ne: int) -> Tensor:
        return from_numpy(rng.standard_normal(ne[::-1], np.float32))

    x = floats(256, 5)
    weights = {
        name: from_bytes(
            rng.integers(0, 64, 33 * 256 // TYPES[name].block_size * TYPES[name].type_size)
            .astype(np.uint8)
            .tobytes(),
            name,
            ne=(256, 33),
        )
        for name in ("q4_0", "q6_K", "iq4_xs")
    }
    found = {f"mul_mat {name}": ops.mul_mat(w, x) for name, w in weights.items()}
    ids = from_numpy(np.array([3, 0, 32], np.int32))
    found |= {f"get_rows {name}": ops.get_rows(w, ids) for name, w in weights.items()}
    return found | {
        "rms_norm": ops.rms_norm(x, 1e-5),
        "soft_max": ops.soft_max(x),
        "gelu": ops.gelu(x),
        "gelu_erf": ops.gelu_erf(x),
        "sin": ops.sin(x),
        "argsort": ops.argsort(x, 0),
        "sum_rows": ops.sum_rows(x),
    }


def computed(backend: CpuBackend) -> dict[str, bytes]:
    """All in one go: what is compiled together is compiled on all cores."""
    made = graphs()
    compute([*made.values()], backend=backend)
    return {name: y.tobytes() for name, y in made.items()}


@pytest.fixture(params=sorted({ISAS[0], ISAS[-1]}))
def backends(request: pytest.FixtureRequest) -> Iterator[tuple[CpuBackend, CpuBackend]]:
    """One whose code the loader has loaded, and one whose code LLVM has."""
    ours, llvms = CpuBackend(2, request.param), CpuBackend(2, request.param)
    llvms._jit = jit_of_llvm(request.param)
    yield ours, llvms
    assert llvms._jit.uses_llvm
    assert not (machine_memory.HERE and ours._jit.uses_llvm)


@cache
def jit_of_llvm(isa: str) -> Jit:
    class OfLlvm(Jit):
        def begin(self) -> None:
            super().begin()
            self._linker = _AlwaysLlvm(self.isa)

    return OfLlvm(isa)


class _AlwaysLlvm(Linker):
    def _load(self, objects: object) -> None:
        return None


def test_kernels_give_the_same_bits(backends: tuple[CpuBackend, CpuBackend]) -> None:
    ours, llvms = map(computed, backends)
    assert ours == llvms


def test_settings_tell_that_llvm_is_in_memory() -> None:
    backend = CpuBackend(1, "generic")
    backend._jit = jit_of_llvm("generic")
    compute(graphs()["rms_norm"], backend=backend)
    assert f", linked by LLVM ({llvm_bytes() / 1e6:.0f} MB of it in memory)" in backend.settings()


def test_where_there_is_no_loader_llvm_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "HERE", False)
    linked = Linker(GENERIC)
    address = linked.link({"f": object_code("define i64 @f() {\n ret i64 5\n}")})["f"]
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(address)() == 5
    assert linked.uses_llvm


@linux
def test_the_size_of_llvm_is_what_linux_says() -> None:
    library = Path(llvm.__file__).with_name("libllvmlite.so")
    assert llvm_bytes() == resident_bytes(library) > 20_000_000


def test_without_llvm_its_size_is_0() -> None:
    code = (
        "from ggmlpy.backends.cpu.backend import CpuBackend\n"
        "from ggmlpy.backends.cpu.linker import llvm_bytes\n"
        "backend = CpuBackend(1)\n"
        "assert llvm_bytes() == 0\n"
        "assert 'LLVM' not in backend.settings()\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
