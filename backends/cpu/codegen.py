"""LLVM IR -> object code for an instruction set -> addresses in this process. llvmlite only."""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.errors import BackendError, KernelError

# All that compiled code may call: memory idioms that LLVM makes itself, C's maths, waiting, and
# reading a file.
_MEMORY = ("memcpy", "memmove", "memset")
_MATH = ("exp", "log", "sin", "cos", "tan", "tanh", "pow", "erf", "fmod")
_UNROLL_INSTRUCTIONS = 4000
_WAITING = ("usleep", "clock")
_READING = ("pread",)
_FOR_GOOD: list[llvm.LLJIT | llvm.ResourceTracker] = []


@cache
def _initialize() -> None:
    if llvm.llvm_version_info[0] < 20:  # later ones do it on import and warn when asked
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def target_machine(isa: ISA) -> llvm.TargetMachine:
    """The LLVM target of an instruction set, on this operating system."""
    _initialize()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=3, reloc="pic", codemodel="default"
    )


@cache
def _unroll_constant_loops() -> None:
    """Loops of a constant count are meant to be unrolled: a tile's vectors get registers only then.

    The default limit of 300 instructions is too low for 8 tokens of int8 products without VNNI.
    """
    llvm.set_option("ggmlpy", f"-unroll-threshold={_UNROLL_INSTRUCTIONS}")


def object_code(module: llvm.ModuleRef, symbol: str, isa: ISA) -> bytes:
    """Object code for `isa` in which the function `symbol` is all that others see. Raises
    KernelError if it calls what must not be."""
    optimize(module, symbol, isa)
    return emit_object(module, symbol, isa)


def optimize(module: llvm.ModuleRef, symbol: str, isa: ISA) -> None:
    """LLVM's O3 pipeline for `isa`, in place. Everything but `symbol` becomes internal."""
    _unroll_constant_loops()
    machine = target_machine(isa)
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False  # kernels say which lanes they mean
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)


def emit_object(module: llvm.ModuleRef, symbol: str, isa: ISA) -> bytes:
    """Object code of the optimised module. Raises KernelError if it calls what must not be."""
    code = bytes(target_machine(isa).emit_object(module))
    declared = {f.name for f in module.functions if f.is_declaration}
    called = {name for name in declared if not name.startswith("llvm.")} | undefined_symbols(code)
    foreign = sorted(called - _externals().keys())
    if foreign:
        raise KernelError(
            f"{symbol} for {isa.name} calls {', '.join(foreign)}: a kernel must do without numba's "
            "runtime, Python's C API and compiler helpers"
        )
    return code


def undefined_symbols(code: bytes) -> set[str]:
    """Names that an ELF object leaves to the linker, helpers that LLVM calls of itself included.

    Other object formats are not read: the set is empty.
    """
    found = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(code).sections()}
    names = found.get(b".strtab", b"")
    undefined = set()
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", found.get(b".symtab", b"")):
        if section == 0 and name:
            undefined.add(names[name : names.index(0, name)].decode())
    return undefined - {"_GLOBAL_OFFSET_TABLE_"}


@cache
def _externals() -> Mapping[str, int]:
    """Addresses of the functions that compiled code may call."""
    names = [*_MEMORY, *_MATH, *(name + "f" for name in _MATH), *_WAITING, *_READING]
    found = {name: llvm.address_of_symbol(name) for name in names}
    if sys.platform == "win32":
        switch = ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value
        found["usleep"] = switch
    return {name: address for name, address in found.items() if address}


def _leave_memory() -> None:
    """LLVM's own code, 22 MB around what ran of it, leaves the process's memory (on Linux).

    It comes back from the page cache when it is called. Only code: nothing is ever written to it.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # there is none, or it may not be read: nothing is lost but memory
        return
    madvise = ctypes.CDLL(None).madvise
    for line in maps.splitlines():
        place, may, *rest = line.split(maxsplit=5)
        if may == "r-xp" and rest and Path(rest[-1]).name.startswith("libllvmlite."):
            begin, end = (int(address, 16) for address in place.split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


class Linker:
    """Loads object code into this process, for good.

    Addresses end up in records and in threads that may outlive the interpreter's orderly end, so
    nothing is ever unloaded.
    """

    def __init__(self, isa: ISA) -> None:
        _initialize()
        self._jit = llvm.create_lljit_compiler(target_machine(isa), suppress_errors=True)
        self._n_libraries = 0
        _FOR_GOOD.append(self._jit)

    def link(self, objects: Mapping[str, bytes]) -> dict[str, int]:
        """The address of each symbol, each in its object. Raises BackendError if it cannot be."""
        builder = llvm.JITLibraryBuilder()
        for name, address in _externals().items():
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
        _leave_memory()
        return {symbol: library[symbol] for symbol in objects}
