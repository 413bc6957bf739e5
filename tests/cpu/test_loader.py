"""Objects in memory: what compiled code finds there, and what is refused instead of being run."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from ggmlpy.backends.cpu import codegen, externals, machine_memory
from ggmlpy.backends.cpu.elf import ObjectError
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.linker import _LlvmLinker
from ggmlpy.backends.cpu.loader import load
from ggmlpy.errors import BackendError
from tests.cpu.elf_objects import (
    ABSOLUTE_64,
    CALL_32,
    CODE,
    COMPRESSED,
    CONSTANT,
    DATA,
    FUNCTION,
    LOCAL,
    NOBITS,
    OBJECT,
    RELATIVE_32,
    RET,
    SECTION,
    TLS,
    UNDEFINED,
    UNWIND,
    WEAK,
    WRITE,
    Header,
    Relocation,
    Section,
    Symbol,
    elf,
)

pytestmark = pytest.mark.skipif(not machine_memory.HERE, reason="loads on Linux for x86-64 only")

GENERIC = select("generic")
LOAD = b"\x48\x8b\x05" + bytes(4)  # mov rax, [rip + ...], whose relocation is at 3
COUNT = b"\x48\xff\x05" + bytes(4)  # inc qword [rip + ...]
CALL = b"\xe8" + bytes(4)  # whose relocation is at 1
SEVEN = b"\xb8\x07\x00\x00\x00" + RET  # mov eax, 7; ret


def called(code: bytes, *args: int, symbol: str = "f", **others: int) -> int:
    """What the function of an object returns."""
    address = load({symbol: code}, others)[symbol]
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))(address)
    result: int = function(*args)
    return result


def test_code_runs() -> None:
    assert called(elf([Section(SEVEN)], [Symbol("f", 1)])) == 7


@pytest.mark.parametrize("align", [1, 2, 8, 32, 4096])
def test_a_constant_is_found(align: int) -> None:
    """Behind sections of odd lengths and alignments, by a symbol or from its section's start."""
    constants = [
        Section(b"abc", CONSTANT, align=1),
        Section(struct.pack("<qq", -5, 11), CONSTANT, align=align),
        Section(b"x" * 7, CONSTANT, align=2),
    ]
    code = Section(LOAD + RET)
    symbols = [Symbol("f", 1), Symbol("eleven", 3, 8, OBJECT, LOCAL), Symbol("", 3, 0, SECTION, 0)]
    by_symbol = Relocation(1, 3, RELATIVE_32, 2)
    assert called(elf([code, *constants], symbols, [by_symbol])) == 11
    by_section = Relocation(1, 3, RELATIVE_32, 3, addend=-4 + 8)
    assert called(elf([code, *constants], symbols, [by_section])) == 11


@pytest.mark.parametrize("align", [1, 16, 256, 4096])
def test_alignment_is_kept(align: int) -> None:
    address = b"\x48\x8d\x05" + bytes(4) + RET  # lea rax, [rip + ...]
    for flags in (CONSTANT, DATA, CODE):
        sections = [Section(address), Section(b"abc", flags, align=1)]
        sections.append(Section(bytes(8), flags, align=align))
        symbols = [Symbol("f", 1), Symbol("aligned", 3, 0, OBJECT)]
        found = called(elf(sections, symbols, [Relocation(1, 3, RELATIVE_32, 2)]))
        assert found % align == 0


@pytest.mark.parametrize(
    ("section", "first"),
    [(Section(struct.pack("<q", 40), DATA), 41), (Section(b"", DATA, NOBITS, n_bytes=8), 1)],
)
def test_data_can_be_written_and_is_kept(section: Section, first: int) -> None:
    code = COUNT + LOAD + RET
    relocations = [Relocation(1, 3, RELATIVE_32, 2), Relocation(1, 10, RELATIVE_32, 2)]
    symbols = [Symbol("f", 1), Symbol("counter", 2, 0, OBJECT)]
    code = elf([Section(code), section], symbols, relocations)
    address = load({"f": code}, {})["f"]
    function = ctypes.CFUNCTYPE(ctypes.c_int64)(address)
    assert [function() for _ in range(3)] == [first, first + 1, first + 2]


def test_an_address_in_data_is_that_of_this_process() -> None:
    """mov rax, [table]; mov rax, [rax]"""
    code = LOAD + b"\x48\x8b\x00" + RET
    sections = [
        Section(code),
        Section(bytes(16), DATA),
        Section(struct.pack("<qq", 3, 9), CONSTANT),
    ]
    symbols = [Symbol("f", 1), Symbol("table", 2, 8, OBJECT), Symbol("", 3, 0, SECTION, LOCAL)]
    relocations = [Relocation(1, 3, RELATIVE_32, 2), Relocation(2, 8, ABSOLUTE_64, 3, addend=8)]
    assert called(elf(sections, symbols, relocations)) == 9


def test_functions_call_each_other_and_what_is_given() -> None:
    """f(x): g() + outside(x), with a stack that is aligned."""
    seen: list[int] = []

    def note(x: int) -> int:
        seen.append(x)
        return 100 * x

    outside = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(note)

    code = b"\x53" + CALL + b"\x48\x89\xc3" + CALL + b"\x48\x01\xd8\x5b" + RET
    local = len(code) + 3
    code += b"\xcc" * 3 + SEVEN
    symbols = [
        Symbol("f", 1),
        Symbol("g", 1, local, FUNCTION, LOCAL),
        Symbol("outside", UNDEFINED, 0, 0),
    ]
    relocations = [Relocation(1, 2, CALL_32, 2), Relocation(1, 10, CALL_32, 3)]
    address = ctypes.cast(outside, ctypes.c_void_p).value
    assert address is not None
    assert called(elf([Section(code)], symbols, relocations), 4, outside=address) == 407
    assert seen == [4]


def test_objects_that_are_loaded_together_keep_to_themselves() -> None:
    """Each has an f of its own inside, and a name of its own outside."""
    objects = {}
    for name, value in (("one", 1), ("two", 2)):
        code = CALL + RET + b"\xcc" * 2 + SEVEN.replace(b"\x07", bytes([value]))
        symbols = [Symbol(name, 1), Symbol("f", 1, 8, FUNCTION, LOCAL)]
        objects[name] = elf([Section(code)], symbols, [Relocation(1, 1, CALL_32, 2)])
    addresses = load(objects, {})
    found = {name: ctypes.CFUNCTYPE(ctypes.c_int64)(a)() for name, a in addresses.items()}
    assert found == {"one": 1, "two": 2}
    assert all(address % 64 == 0 for address in addresses.values())


def test_what_unwinders_read_is_left_out() -> None:
    sections = [Section(SEVEN), Section(bytes(24), CONSTANT, UNWIND), Section(bytes(9), flags=0)]
    code = elf(sections, [Symbol("f", 1)], [Relocation(2, 4, RELATIVE_32, 1)])
    assert called(code) == 7


def protections(address: int) -> list[str]:
    """Of the pages from an address on, as far as they lie side by side."""
    found: list[str] = []
    at = address
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= at < end and len(found) < 3:
            found.append(line.split()[1])
            at = end
    return found


def test_no_page_is_writable_and_executable() -> None:
    sections = [Section(SEVEN), Section(bytes(8), CONSTANT), Section(bytes(8), DATA)]
    address = load({"f": elf(sections, [Symbol("f", 1)])}, {})["f"]
    assert protections(address) == ["r-xp", "r--p", "rw-p"]


def test_where_code_may_not_be_run_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    code = elf([Section(SEVEN)], [Symbol("f", 1)])
    system = machine_memory._system()
    unmapped: list[tuple[int, int]] = []

    class Refusing:
        mmap = system.mmap

        @staticmethod
        def mprotect(*args: int) -> int:
            ctypes.set_errno(13)
            return -1

        @staticmethod
        def munmap(address: int, n_bytes: int) -> int:
            unmapped.append((address, n_bytes))
            result: int = system.munmap(address, n_bytes)
            return result

    monkeypatch.setattr(machine_memory, "_system", Refusing)
    with pytest.raises(BackendError, match=r"no memory for compiled code: Permission denied"):
        load({"f": code}, {})
    ((address, n_bytes),) = unmapped
    assert n_bytes == machine_memory.PAGE
    assert protections(address) == []


def test_where_there_is_no_memory_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    code = elf([Section(SEVEN), Section(b"", DATA, NOBITS, n_bytes=1 << 29)], [Symbol("f", 1)])

    def none_left(n_bytes: int) -> None:
        raise OSError(12, os.strerror(12))

    monkeypatch.setattr("ggmlpy.backends.cpu.loader.Pages", none_left)
    with pytest.raises(BackendError, match=r"Cannot allocate memory"):
        load({"f": code}, {})


F = Symbol("f", 1)
SOUND = [Section(SEVEN), Section(bytes(16), CONSTANT)]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (elf(SOUND, [F], [Relocation(1, 1, 42, 1)]), "type 42"),  # through a table of addresses
        (elf(SOUND, [F], [Relocation(1, 1, 10, 1)]), "type 10"),  # absolute, 32 bits
        (elf(SOUND, [F], [Relocation(1, 3, CALL_32, 1)]), "behind its section"),
        (elf(SOUND, [F], [Relocation(2, 9, ABSOLUTE_64, 1)]), "behind its section"),
        (elf(SOUND, [F], [Relocation(2, 16, ABSOLUTE_64, 1)]), "behind its section"),
        (elf(SOUND, [F], [Relocation(2, 1 << 63, ABSOLUTE_64, 1)]), "behind its section"),
        (elf(SOUND, [F], [Relocation(1, 1, CALL_32, 2)]), "of symbol 2 of 2"),
        (elf(SOUND, [F], [Relocation(1, 1, CALL_32, 0)]), "needs , which is not there"),
        (elf(SOUND, [F], [Relocation(1, 1, RELATIVE_32, 1, 1 << 40)]), "too far"),
        (elf(SOUND, [F], [Relocation(1, 1, CALL_32, 1)], relocation_type=9), "type 9"),
        (elf(SOUND, [F], [Relocation(1, 1, CALL_32, 1)], symbols_of_relocations=1), "not of the"),
        (
            elf(SOUND, [F, Symbol("g", UNDEFINED)], [Relocation(1, 1, CALL_32, 2)]),
            "needs g, which is not there",
        ),
        (
            elf(SOUND, [F, Symbol("known", UNDEFINED)], [Relocation(2, 0, ABSOLUTE_64, 2)]),
            "the address of known",
        ),
        (
            elf(SOUND, [F, Symbol("known", UNDEFINED)], [Relocation(1, 1, RELATIVE_32, 2)]),
            "the address of known",
        ),
        (
            elf(
                [*SOUND, Section(bytes(9), flags=0)],
                [F, Symbol("g", 3)],
                [Relocation(1, 1, CALL_32, 2)],
            ),
            "not loaded",
        ),
        (elf(SOUND, [F, Symbol("g", 2, 17)]), "'g' lies behind its section"),
        (elf(SOUND, [F, Symbol("g", 1, 0, FUNCTION, WEAK)]), "binding 2"),
        (elf(SOUND, [F, Symbol("g", 1, 0, 6)]), "type 6"),  # a thread's own
        (elf(SOUND, [F, Symbol("g", 1, 0, 10)]), "type 10"),  # found by a function
        (elf(SOUND, [F, Symbol("g", 0xFFF2)]), "section 0xfff2"),  # common
        (elf(SOUND, [F, Symbol("g", 0xFFF1)]), "section 0xfff1"),  # absolute
        (elf(SOUND, [Symbol("g", 1)]), "does not define f"),
        (elf(SOUND, [Symbol("f", 2)]), "does not define f"),  # no code
        (elf(SOUND, [Symbol("f", 1, 0, OBJECT)]), "does not define f"),
        (elf(SOUND, [Symbol("f", 1, len(SEVEN))]), "does not define f"),  # its end
        (elf(SOUND, [Symbol("f", 9)]), "does not define f"),
        (elf(SOUND, [Symbol("f", UNDEFINED)]), "does not define f"),
        (elf([Section(SEVEN, CODE | WRITE)], [F]), "writable and executable"),
        (elf([Section(SEVEN), Section(bytes(8), DATA | TLS)], [F]), "flags 0x403"),
        (elf([Section(SEVEN), Section(bytes(8), CONSTANT | COMPRESSED)], [F]), "flags 0x802"),
        (elf([Section(SEVEN), Section(bytes(8), DATA, 14)], [F]), "type 0xe"),  # constructors
        (elf([Section(SEVEN, align=3)], [F]), "aligned to 3"),
        (elf([Section(SEVEN, align=1 << 20)], [F]), "aligned to 1048576"),
        (elf([Section(SEVEN, n_bytes=1 << 20)], [F]), "ends behind"),
        (elf([Section(SEVEN, n_bytes=(1 << 64) - 64)], [F]), "ends behind"),
        (elf([*SOUND, Section(b"", DATA, NOBITS, n_bytes=1 << 40)], [F]), "bytes of memory"),
        (elf([], []), "bytes of memory"),
        (elf([*SOUND, Section(b"", 0, 2)], [F]), "2 symbol tables"),
        (elf([*SOUND, Section(bytes(4), 0, 17)], [F]), "type 17"),  # a group
        (elf(SOUND, [F], header=Header(machine=183)), "not a relocatable"),
        (elf(SOUND, [F], header=Header(type=3)), "not a relocatable"),
        (elf(SOUND, [F], header=Header(ident=b"\x7fELF\x01\x01\x01" + bytes(9))), "not a reloc"),
        (elf(SOUND, [F], header=Header(ident=b"\x7fELF\x02\x02\x01" + bytes(9))), "not a reloc"),
        (elf(SOUND, [F], header=Header(n_section_entry=40)), "of 40 bytes"),
        (elf(SOUND, [F], header=Header(n_sections=0)), "0 section headers"),
        (elf(SOUND, [F], header=Header(n_sections=6)), "end behind"),
        (elf(SOUND, [F], header=Header(sections_at=(1 << 64) - 64)), "end behind"),
        (b"", "no header"),
        (b"no object", "no header"),
        (b"\x7fELF" + bytes(200), "not a relocatable"),
    ],
)
def test_what_is_damaged_or_unknown_is_refused(code: bytes, reason: str) -> None:
    with pytest.raises(ObjectError, match=reason):
        load({"f": code}, {"known": 1})


def test_an_object_that_was_cut_is_refused() -> None:
    whole = compiled(_TABLES)
    for n in range(len(whole)):
        with pytest.raises(ObjectError):
            load({"f": whole[:n]}, externals.addresses())


# --- what LLVM makes of IR, loaded here and by LLVM -----------------------------------------------

_TABLES = """
@counter = internal global i64 5
@zeros = internal global [64 x i64] zeroinitializer, align 64
@bytes = internal constant [3 x i8] c"\\01\\02\\04", align 1
@floats = internal constant [4 x float] [float 1.5, float 2.5, float -3.5, float 4.5], align 64
@names = internal constant [3 x i8*] [
  i8* getelementptr ([3 x i8], [3 x i8]* @bytes, i64 0, i64 2),
  i8* getelementptr ([3 x i8], [3 x i8]* @bytes, i64 0, i64 0),
  i8* getelementptr ([3 x i8], [3 x i8]* @bytes, i64 0, i64 1)
]
declare float @expf(float)
declare void @llvm.memcpy.p0i8.p0i8.i64(i8*, i8*, i64, i1)

define internal i64 @kind(i64 %x) noinline {
  switch i64 %x, label %other [
    i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %e
  ]
a: ret i64 31
b: ret i64 14
c: ret i64 95
d: ret i64 26
e: ret i64 53
other: ret i64 %x
}

define i64 @f(i64 %x) {
  %n = load volatile i64, i64* @counter
  %n1 = add i64 %n, 1
  store volatile i64 %n1, i64* @counter
  %kind = call i64 @kind(i64 %x)
  %small = urem i64 %x, 3
  %place = getelementptr [3 x i8*], [3 x i8*]* @names, i64 0, i64 %small
  %name = load volatile i8*, i8** %place
  %byte = load i8, i8* %name
  %byte64 = zext i8 %byte to i64
  %zero = getelementptr [64 x i64], [64 x i64]* @zeros, i64 0, i64 %small
  %was = load volatile i64, i64* %zero
  %is = add i64 %was, %x
  store volatile i64 %is, i64* %zero
  %which = getelementptr [4 x float], [4 x float]* @floats, i64 0, i64 %small
  %float = load volatile float, float* %which
  %power = call float @expf(float %float)
  %scaled = fmul float %power, 1.0e3
  %power64 = fptosi float %scaled to i64
  %s1 = mul i64 %n, 1000003
  %s2 = add i64 %s1, %kind
  %s3 = mul i64 %s2, 1000003
  %s4 = add i64 %s3, %byte64
  %s5 = mul i64 %s4, 1000003
  %s6 = add i64 %s5, %is
  %s7 = mul i64 %s6, 1000003
  %s8 = add i64 %s7, %power64
  ret i64 %s8
}
"""


def compiled(ir: str) -> bytes:
    return codegen.object_code(llvm.parse_assembly(ir), "f", GENERIC)


def test_what_llvm_makes_is_loaded_as_llvm_loads_it() -> None:
    """Jump tables, constants of odd lengths, tables of addresses, data, zeros and calls."""
    code = compiled(_TABLES)
    sections = {section.name() for section in llvm.ObjectFileRef.from_data(code).sections()}
    assert {b".data", b".bss", b".data.rel.ro", b".rodata"} <= sections
    functions = [
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
        for address in (
            load({"f": code}, externals.addresses())["f"],
            _LlvmLinker(GENERIC).link({"f": code})["f"],
        )
    ]
    for x in (0, 1, 2, 3, 4, 5, 77, 4, 2):
        ours, llvms = (function(x) for function in functions)
        assert ours == llvms


def test_what_may_be_called_is_what_llvm_finds() -> None:
    _LlvmLinker(GENERIC)  # from then on it looks at what the process has loaded
    found = {name: llvm.address_of_symbol(name) for name in externals.NAMES}
    assert externals.addresses() == found
