"""Object files that LLVM emits for x86-64 on Linux, read: ELF64, relocatable.

    header 64 | contents of sections | section headers, 64 each
    symbol 24      name u32 | info u8 | other u8 | section u16 | value u64 | size u64
    relocation 24  offset u64 | type u32, symbol u32 | addend i64

Offsets and counts are checked against the file before they are followed. Whatever an object has
that is not known here is refused, since code would run without it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from ggmlpy.errors import BackendError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")

_IDENT = b"\x7fELF\x02\x01\x01\x00"  # 64 bits, little-endian, version 1, System V
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 3, 4, 8, 0x70000001
_REL, _GROUP, _SYMTAB_SHNDX = 9, 17, 18
_WRITE, _ALLOC, _EXECUTE = 0x1, 0x2, 0x4
_MERGE, _STRINGS, _INFO_LINK = 0x10, 0x20, 0x40  # say nothing of where a section may lie
_KNOWN_FLAGS = _WRITE | _ALLOC | _EXECUTE | _MERGE | _STRINGS | _INFO_LINK
_NO_TYPE, _OBJECT, _FUNCTION, _OF_SECTION, _OF_FILE = range(5)
_LOCAL, _GLOBAL = 0, 1
_UNDEFINED, _RESERVED = 0, 0xFF00
_MAX_ALIGN = 4096


class ObjectError(BackendError):
    """An object that is damaged, or has what this loader does not know."""


class Kind(Enum):
    """What the memory of a section must allow, beside being read."""

    CODE = "executed"
    CONSTANT = "nothing"
    DATA = "written"


@dataclass(frozen=True, slots=True)
class Section:
    """One that is needed in memory. `content` is shorter than `n_bytes` where zeros follow."""

    kind: Kind
    content: memoryview
    n_bytes: int
    align: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """`section` is an index into the object's sections, None for what other objects define."""

    name: str
    section: int | None
    value: int
    is_function: bool


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place in a section that depends on where `symbol` lies; `type` is ELF's number."""

    section: int
    offset: int
    type: int
    symbol: Symbol
    addend: int


@dataclass(slots=True)
class Object:
    """What is needed of an object file, sections by their index in it."""

    sections: dict[int, Section] = field(default_factory=dict)
    symbols: list[Symbol] = field(default_factory=list)
    relocations: list[Relocation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Header:
    """A section's header, and what the file has of it."""

    type: int
    flags: int
    n_bytes: int
    link: int
    info: int
    align: int
    content: memoryview


def read_object(code: bytes) -> Object:
    """Raises ObjectError for what is no such object, is damaged, or is not known here."""
    headers = _headers(code)
    found = Object()
    for index, header in enumerate(headers):
        if header.flags & _ALLOC and header.type != _UNWIND:
            found.sections[index] = _section(index, header)
    tables = [header for header in headers if header.type == _SYMTAB]
    if len(tables) != 1:
        raise ObjectError(f"an object has {len(tables)} symbol tables, must have 1")
    found.symbols = list(_symbols(tables[0], headers, found))
    for index, header in enumerate(headers):
        if header.type in (_REL, _GROUP, _SYMTAB_SHNDX):
            raise ObjectError(f"section {index} is of type {header.type}, which is not supported")
        if header.type == _RELA and header.info in found.sections:
            if headers[header.link : header.link + 1] != tables:
                raise ObjectError(f"relocations in section {index} are not of the symbol table")
            found.relocations += _relocations(header, found)
    return found


def _headers(code: bytes) -> list[_Header]:
    if len(code) < _HEADER.size:
        raise ObjectError(f"an object of {len(code)} bytes has no header")
    ident, type_, machine, *_, start, _, n_header, _, _, n_entry, n, _ = _HEADER.unpack_from(code)
    if ident[: len(_IDENT)] != _IDENT or (type_, machine) != (_RELOCATABLE, _X86_64):
        raise ObjectError("not a relocatable ELF object for x86-64")
    if (n_header, n_entry) != (_HEADER.size, _SECTION.size) or not n:
        raise ObjectError(f"{n} section headers of {n_entry} bytes, header of {n_header} bytes")
    if start + n * _SECTION.size > len(code):
        raise ObjectError(f"section headers end behind the object's {len(code)} bytes")
    whole = memoryview(code)
    table = whole[start : start + n * _SECTION.size]
    return [_header(whole, *fields) for fields in _SECTION.iter_unpack(table)]


def _header(
    whole: memoryview,
    name: int,
    type_: int,
    flags: int,
    address: int,
    offset: int,
    n_bytes: int,
    link: int,
    info: int,
    align: int,
    n_entry: int,
) -> _Header:
    n_content = 0 if type_ == _NOBITS else n_bytes
    if offset + n_content > len(whole):
        raise ObjectError(f"a section of {n_bytes} bytes ends behind the object's {len(whole)}")
    content = whole[offset : offset + n_content]
    return _Header(type_, flags, n_bytes, link, info, max(align, 1), content)


def _section(index: int, header: _Header) -> Section:
    if header.type not in (_PROGBITS, _NOBITS) or header.flags & ~_KNOWN_FLAGS:
        raise ObjectError(
            f"section {index} is of type {header.type:#x} with flags {header.flags:#x}, which are"
            " not supported"
        )
    if header.align > _MAX_ALIGN or header.align & (header.align - 1):
        raise ObjectError(f"section {index} is aligned to {header.align} bytes")
    kinds = {0: Kind.CONSTANT, _EXECUTE: Kind.CODE, _WRITE: Kind.DATA}
    kind = kinds.get(header.flags & (_WRITE | _EXECUTE))
    if kind is None:
        raise ObjectError(f"section {index} asks to be writable and executable")
    return Section(kind, header.content, header.n_bytes, header.align)


def _symbols(table: _Header, headers: list[_Header], found: Object) -> Iterator[Symbol]:
    if table.link >= len(headers) or headers[table.link].type != _STRTAB:
        raise ObjectError("the symbol table has no names")
    names = bytes(headers[table.link].content)
    for name, info, _, section, value, _ in _entries(_SYMBOL, table):
        binding, type_ = info >> 4, info & 15
        if section >= _RESERVED and type_ == _OF_FILE:
            section = _UNDEFINED
        defined = section != _UNDEFINED
        # The first entry is empty, and the one with the source's name is never asked for.
        if binding not in (_LOCAL, _GLOBAL) or type_ > _OF_FILE or section >= _RESERVED:
            raise ObjectError(
                f"symbol {_name(names, name)!r} (type {type_}, binding {binding}, section"
                f" {section:#x}) is not supported"
            )
        if defined and section in found.sections and value > found.sections[section].n_bytes:
            raise ObjectError(f"symbol {_name(names, name)!r} lies behind its section")
        yield Symbol(_name(names, name), section if defined else None, value, type_ == _FUNCTION)


def _name(names: bytes, start: int) -> str:
    end = names.find(b"\0", start)
    if start >= len(names) or end < 0:
        raise ObjectError("the name of a symbol lies behind the names")
    return names[start:end].decode(errors="replace")


def _relocations(header: _Header, found: Object) -> Iterator[Relocation]:
    n_bytes = found.sections[header.info].n_bytes
    for offset, type_, symbol, addend in _entries(_RELOCATION, header):
        if symbol >= len(found.symbols):
            raise ObjectError(f"a relocation is of symbol {symbol} of {len(found.symbols)}")
        if offset >= n_bytes:
            raise ObjectError(f"a relocation lies behind its section of {n_bytes} bytes")
        yield Relocation(header.info, offset, type_, found.symbols[symbol], addend)


def _entries(entry: struct.Struct, header: _Header) -> Iterator[tuple[int, ...]]:
    if len(header.content) % entry.size:
        raise ObjectError(f"a table of {len(header.content)} bytes has entries of {entry.size}")
    return entry.iter_unpack(header.content)
