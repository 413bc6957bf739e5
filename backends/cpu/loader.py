"""Object code into this process without a compiler's library: on Linux for x86-64.

    code of all objects | stubs | constants | data         code, constants, data begin on pages

Objects that are loaded together share one mapping, so that every distance in it fits the 32 bits
of a relative address. What they call elsewhere, in C's library, may be further away: a call goes to
a stub, which jumps to the full address.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ggmlpy.backends.cpu.elf import Kind, Object, ObjectError, Relocation, Section, read_object
from ggmlpy.backends.cpu.machine_memory import PAGE, Pages
from ggmlpy.errors import BackendError

_ABSOLUTE_64, _RELATIVE_32, _CALL_32 = 1, 2, 4  # R_X86_64_64, _PC32, _PLT32
_WIDTHS = {_ABSOLUTE_64: 8, _RELATIVE_32: 4, _CALL_32: 4}
_CODE_ALIGN = 64  # a cache line: how fast a kernel is must not depend on what lies before it
_MAX_BYTES = 1 << 30
_INT3 = b"\xcc"  # nothing runs between functions
_STUB = struct.Struct("<8sQ")
_JUMP = b"\xff\x25\x02\x00\x00\x00\x0f\x0b"  # jmp [rip + 2]; ud2; then come the address's 8 bytes


@dataclass(slots=True)
class _Layout:
    """Offsets in the mapping: of sections by number of the object and index, of stubs by name."""

    sections: dict[tuple[int, int], int] = field(default_factory=dict)
    stubs: dict[str, int] = field(default_factory=dict)
    ends: dict[Kind, int] = field(default_factory=dict)
    n_bytes: int = 0


def load(objects: Mapping[str, bytes], externals: Mapping[str, int]) -> dict[str, int]:
    """The address of each symbol, a function in its object, for as long as the process lives.

    Raises ObjectError where an object is damaged, has what is not known here, or needs what is not
    in `externals`; BackendError where the system gives no memory that code may run from.
    """
    parts = [read_object(code) for code in objects.values()]
    layout = _lay_out(parts, externals)
    entries = {
        symbol: _entry(symbol, i, part, layout)
        for i, (symbol, part) in enumerate(zip(objects, parts, strict=True))
    }
    try:
        pages = Pages(layout.n_bytes)
        pages.write(_image(parts, layout, externals, pages.address))
        n_code = layout.ends[Kind.CODE]
        pages.close(n_code, layout.ends[Kind.CONSTANT] - n_code)
    except OSError as error:
        raise BackendError(f"no memory for compiled code: {error.strerror}") from None
    return {symbol: pages.address + offset for symbol, offset in entries.items()}


def _lay_out(parts: Sequence[Object], externals: Mapping[str, int]) -> _Layout:
    layout = _Layout()
    end = 0
    for kind in Kind:
        for i, part in enumerate(parts):
            for index, section in part.sections.items():
                if section.kind is kind:
                    end = _up(end, _align(section))
                    layout.sections[i, index] = end
                    end += section.n_bytes
        if kind is Kind.CODE:
            for name in sorted(_called(parts, externals)):
                layout.stubs[name] = _up(end, _STUB.size)
                end = layout.stubs[name] + _STUB.size
        end = layout.ends[kind] = _up(end, PAGE)
    layout.n_bytes = end
    if not 0 < end <= _MAX_BYTES:
        raise ObjectError(f"{len(parts)} objects take {end} bytes of memory")
    return layout


def _align(section: Section) -> int:
    return max(section.align, _CODE_ALIGN) if section.kind is Kind.CODE else section.align


def _up(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _called(parts: Sequence[Object], externals: Mapping[str, int]) -> set[str]:
    """Names of what lies outside the objects."""
    relocations = (relocation for part in parts for relocation in part.relocations)
    names = {r.symbol.name for r in relocations if r.symbol.section is None}
    unknown = sorted(names - externals.keys())
    if unknown:
        raise ObjectError(f"compiled code needs {', '.join(unknown)}, which is not there")
    return names


def _entry(symbol: str, i: int, part: Object, layout: _Layout) -> int:
    """The offset of an object's function."""
    for found in part.symbols:
        if found.name == symbol and found.is_function and found.section in part.sections:
            section = part.sections[found.section]
            if section.kind is Kind.CODE and found.value < section.n_bytes:
                return layout.sections[i, found.section] + found.value
    raise ObjectError(f"an object does not define {symbol}")


def _image(
    parts: Sequence[Object], layout: _Layout, externals: Mapping[str, int], base: int
) -> bytearray:
    """What the mapping at `base` is filled with."""
    image = bytearray(layout.n_bytes)
    n_code = layout.ends[Kind.CODE]
    image[:n_code] = _INT3 * n_code
    for i, part in enumerate(parts):
        for index, section in part.sections.items():
            start = layout.sections[i, index]
            content = bytes(section.content)
            image[start : start + section.n_bytes] = content.ljust(section.n_bytes, b"\0")
    for name, offset in layout.stubs.items():
        _STUB.pack_into(image, offset, _JUMP, externals[name])
    for i, part in enumerate(parts):
        for relocation in part.relocations:
            _relocate(image, i, part.sections[relocation.section], relocation, layout, base)
    return image


def _relocate(
    image: bytearray,
    i: int,
    section: Section,
    relocation: Relocation,
    layout: _Layout,
    base: int,
) -> None:
    type_ = relocation.type
    if type_ not in _WIDTHS:
        raise ObjectError(f"a relocation is of type {type_}, which is not supported")
    if relocation.offset + _WIDTHS[type_] > section.n_bytes:
        raise ObjectError(f"a relocation lies behind its section of {section.n_bytes} bytes")
    place = layout.sections[i, relocation.section] + relocation.offset
    target = _target(i, relocation, layout) + relocation.addend
    if type_ == _ABSOLUTE_64:
        struct.pack_into("<Q", image, place, (base + target) % (1 << 64))
        return
    distance = target - place
    if not -(1 << 31) <= distance < 1 << 31:
        raise ObjectError(f"a relocation to {relocation.symbol.name!r} is too far: {distance}")
    struct.pack_into("<i", image, place, distance)


def _target(i: int, relocation: Relocation, layout: _Layout) -> int:
    """The offset of what a relocation refers to."""
    symbol = relocation.symbol
    if symbol.section is None:
        if relocation.type != _CALL_32:
            raise ObjectError(f"the address of {symbol.name} is asked for, not only called")
        return layout.stubs[symbol.name]
    start = layout.sections.get((i, symbol.section))
    if start is None:
        raise ObjectError(f"{symbol.name!r} lies in a section that is not loaded")
    return start + symbol.value
