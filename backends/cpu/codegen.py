"""LLVM IR -> object code for an instruction set, by LLVM through llvmlite.

Imported in processes that compile, and where LLVM has to link: its library takes over 40 MB.
"""

from __future__ import annotations

import struct
from functools import cache

import llvmlite.binding as llvm

from ggmlpy.backends.cpu import externals
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.errors import KernelError

_UNROLL_INSTRUCTIONS = 4000


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
    foreign = sorted(called - externals.addresses().keys())
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
