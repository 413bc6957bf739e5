"""What kernels take of a GPU: registers, local and shared memory, read from their machine code.

A cubin is an ELF file. Its section .nv.info holds attributes of functions, of 4 + n bytes:

    format u8 (4: with a payload) | attribute u8 | n u16 | index of the symbol u32 | value u32

and .nv.shared.<name> is as long as the static shared memory of a kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ggmlpy.backends.cuda.cubins import Cubins
from ggmlpy.backends.cuda.source import Unit

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REGISTERS = 0x2F
_STACK = 0x12  # of a kernel and all that it calls
_PAYLOAD = 4
_TEXT = ".text."
_RESERVED = 1024  # of shared memory by the system, from sm_90 on, which is counted with a kernel's


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What a kernel takes, per thread and per block.

    registers      of a thread
    local_bytes    of a thread, in slow memory: spilled registers and arrays with computed indices
    shared_bytes   of a block, without what a launch asks for
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    content: bytes
    n_bytes: int  # also of a section without content in the file
    link: int


def report(unit: Unit, arch: str, cubins: Cubins | None = None) -> list[KernelReport]:
    """The kernels of a unit, compiled for "sm_…". Raises KernelError if it does not compile."""
    return reports((cubins or Cubins()).load([unit], arch)[unit])


def reports(cubin: bytes) -> list[KernelReport]:
    """The kernels of a cubin, by name."""
    sections = _sections(cubin)
    names = _symbols(sections)
    values: dict[tuple[int, str], int] = {}
    shared = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, symbol, value in _attributes(section.content):
                values[attribute, names[symbol]] = value
        elif section.name.startswith(".nv.shared."):
            shared[section.name.removeprefix(".nv.shared.")] = section.n_bytes
    reserved = _RESERVED if "reserved.0" in shared else 0
    kernels = [s.name.removeprefix(_TEXT) for s in sections if s.name.startswith(_TEXT)]
    return [
        KernelReport(
            name,
            values[_REGISTERS, name],
            values.get((_STACK, name), 0),
            max(0, shared.get(name, 0) - reserved),
        )
        for name in sorted(kernels)
    ]


def table(kernels: Iterable[KernelReport]) -> str:
    """Lines for people."""
    rows = [f"{'kernel':40} {'registers':>9} {'local B':>8} {'shared B':>8}"]
    rows += [f"{k.name:40} {k.registers:9} {k.local_bytes:8} {k.shared_bytes:8}" for k in kernels]
    return "\n".join(rows)


def _sections(elf: bytes) -> list[_Section]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: no 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, n, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [_SECTION.unpack_from(elf, offset + i * size) for i in range(n)]
    names_at = headers[names_index][4]
    found = []
    for name, kind, _, _, start, n_bytes, link, *_ in headers:
        has_content = kind != 8  # SHT_NOBITS
        content = elf[start : start + n_bytes] if has_content else b""
        found.append(_Section(_text(elf, names_at + name), content, n_bytes, link))
    return found


def _symbols(sections: list[_Section]) -> list[str]:
    """The names of symbols, by index."""
    table = next(section for section in sections if section.name == ".symtab")
    strings = sections[table.link].content
    return [_text(strings, name) for name, *_ in _SYMBOL.iter_unpack(table.content)]


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol, value) of those that have this form."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, n = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _PAYLOAD:
            if n == 8:
                yield attribute, *struct.unpack_from("<II", info, at)
            at += n


def _text(content: bytes, start: int) -> str:
    return content[start : content.index(b"\0", start)].decode()
