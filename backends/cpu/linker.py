"""Object code -> addresses in this process, for as long as it lives.

Addresses are used by records and by threads that may outlive the interpreter's shutdown, so nothing
is ever unloaded.

On Linux for x86-64 the objects are loaded by `loader.py`, and a process that finds its kernels in
the cache does not load LLVM. Elsewhere, and for objects that the loader does not support, LLVM
links them: its library then stays in memory, which the backend's settings report.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ggmlpy.backends.cpu import externals, loader, machine_memory
from ggmlpy.backends.cpu.elf import ObjectError
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.errors import BackendError

_FOR_GOOD: list[Any] = []  # what holds LLVM's pages


class Linker:
    """Loads object code for one instruction set. Not for use from several threads at once."""

    def __init__(self, isa: ISA) -> None:
        self._isa = isa
        self._llvm: _LlvmLinker | None = None

    @property
    def uses_llvm(self) -> bool:
        return self._llvm is not None

    def link(self, objects: Mapping[str, bytes]) -> dict[str, int]:
        """The address of each symbol, each in its object. Raises BackendError if it cannot be."""
        addresses = self._load(objects)
        if addresses is None:
            self._llvm = self._llvm or _LlvmLinker(self._isa)
            addresses = self._llvm.link(objects)
        return addresses

    def _load(self, objects: Mapping[str, bytes]) -> dict[str, int] | None:
        """None where our loader does not support them; LLVM may."""
        if not machine_memory.HERE:
            return None
        try:
            return loader.load(objects, externals.addresses())
        except ObjectError:
            return None


class _LlvmLinker:
    """LLVM's own, for every format and architecture that it knows."""

    def __init__(self, isa: ISA) -> None:
        import llvmlite.binding as llvm

        from ggmlpy.backends.cpu.codegen import target_machine

        # JITLink gives a library one block of memory. The older linker asks for each section's
        # alone and aborts the process where they come to lie more than 2 GiB apart.
        self._jit = llvm.create_lljit_compiler(
            target_machine(isa), use_jit_link=True, suppress_errors=True
        )
        self._n_libraries = 0
        _FOR_GOOD.append(self._jit)

    def link(self, objects: Mapping[str, bytes]) -> dict[str, int]:
        import llvmlite.binding as llvm

        builder = llvm.JITLibraryBuilder()
        for name, address in externals.addresses().items():
            builder.import_symbol(name, address)
        for symbol, code in objects.items():
            builder.add_object_img(code)
            builder.export_symbol(symbol)
        self._n_libraries += 1  # before: LLVM keeps the name of one that cannot be loaded
        try:
            library = builder.link(self._jit, f"library{self._n_libraries}")
        except RuntimeError as error:
            raise BackendError(f"compiled code cannot be loaded: {error}") from None
        _FOR_GOOD.append(library)
        return {symbol: library[symbol] for symbol in objects}


def llvm_bytes() -> int:
    """Bytes of LLVM's library in this process: on Linux those in memory, else its whole file."""
    found = sys.modules.get("llvmlite.binding.ffi")
    if found is None:
        return 0
    path = Path(found.__file__ or "").with_name(found.get_library_name())
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return path.stat().st_size if path.is_file() else 0
    total, inside = 0, False
    for line in lines:
        if not line.split(maxsplit=1)[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total
