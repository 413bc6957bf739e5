"""Small ELF objects for x86-64, written field by field: what a loader takes and what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PROGBITS, NOBITS, UNWIND = 1, 8, 0x70000001
WRITE, ALLOC, EXECUTE, TLS, COMPRESSED = 1, 2, 4, 0x400, 0x800
CODE, CONSTANT, DATA = ALLOC | EXECUTE, ALLOC, ALLOC | WRITE
NO_TYPE, OBJECT, FUNCTION, SECTION = 0, 1, 2, 3
LOCAL, GLOBAL, WEAK = 0, 1, 2
ABSOLUTE_64, RELATIVE_32, CALL_32 = 1, 2, 4
UNDEFINED = 0
RET = b"\xc3"


@dataclass
class Section:
    content: bytes = b""
    flags: int = CODE
    type: int = PROGBITS
    align: int = 16
    n_bytes: int | None = None  # if it is not that of the content


@dataclass
class Symbol:
    name: str
    section: int  # from 1, in the order given; 0 is another object's
    value: int = 0
    type: int = FUNCTION
    binding: int = GLOBAL


@dataclass
class Relocation:
    section: int
    offset: int
    type: int
    symbol: int  # from 1, in the order given
    addend: int = -4


@dataclass
class Header:
    """Fields of the file's header that a test may want otherwise."""

    ident: bytes = b"\x7fELF\x02\x01\x01\x00" + bytes(8)
    type: int = 1
    machine: int = 62
    n_section_entry: int = 64
    sections_at: int | None = None
    n_sections: int | None = None


def elf(
    sections: Sequence[Section],
    symbols: Sequence[Symbol],
    relocations: Sequence[Relocation] = (),
    header: Header | None = None,
    *,
    relocation_type: int = 4,
    symbols_of_relocations: int | None = None,
) -> bytes:
    """An object: the sections, then those with their relocations, then symbols and names."""
    header = header or Header()
    body = bytearray()
    table = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]

    def add(content: bytes, type_: int, flags: int, align: int, *more: int, n: int = -1) -> None:
        """Further: link, info, bytes of an entry."""
        link, info, n_entry = (*more, 0, 0, 0)[:3]
        size = len(content) if n < 0 else n
        row = (0, type_, flags, 0, 64 + len(body), size, link, info, align, n_entry)
        table.append(struct.pack("<IIQQQQIIQQ", *row))
        body.extend(content)

    for section in sections:
        n = len(section.content) if section.n_bytes is None else section.n_bytes
        add(section.content, section.type, section.flags, section.align, n=n)
    with_relocations = sorted({relocation.section for relocation in relocations})
    symbol_table = 1 + len(sections) + len(with_relocations)
    for index in with_relocations:
        content = b"".join(
            struct.pack("<QIIq", r.offset, r.type, r.symbol, r.addend)
            for r in relocations
            if r.section == index
        )
        link = symbol_table if symbols_of_relocations is None else symbols_of_relocations
        add(content, relocation_type, 0, 8, link, index, 24)
    names, entries = bytearray(b"\0"), [bytes(24)]
    for s in symbols:
        info = s.binding << 4 | s.type
        entries.append(struct.pack("<IBBHQQ", len(names), info, 0, s.section, s.value, 0))
        names += s.name.encode() + b"\0"
    add(b"".join(entries), 2, 0, 8, symbol_table + 1, 1, 24)
    add(bytes(names), 3, 0, 1)
    start = 64 + len(body) if header.sections_at is None else header.sections_at
    n_sections = len(table) if header.n_sections is None else header.n_sections
    first = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(header.ident, header.type, header.machine, 1, 0, 0, start, 0, 64, 0, 0),
        *(header.n_section_entry, n_sections, 1),
    )
    return first + bytes(body) + b"".join(table)
