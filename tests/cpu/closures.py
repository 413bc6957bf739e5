"""What is compiled into an entry, found without `closure.py`: shared by tests of keys."""

from __future__ import annotations

import dis
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import Choice, Entry, Inline
from ggmlpy.backends.cpu.simd import core
from ggmlpy.backends.cpu.simd.core import Intrinsic

ROOT = Path(__file__).parents[2]
CPU = ROOT / "backends" / "cpu"


def compiled_with(entry: Entry, isa: ISA) -> set[FunctionType]:
    """The functions of all that numba compiles for an entry, found as numba does: by the names that
    its code has; and the Python functions that write the code of its intrinsics. Classes of
    `core.py` are left out: that file counts with every kernel."""
    assert isinstance(entry.function, FunctionType)
    queue, seen = [entry.function], set[FunctionType]()
    while queue:
        function = queue.pop()
        if function not in seen:
            seen.add(function)
            queue += [f for value in _named_in(function) for f in _functions(value, isa)]
    return seen


def _functions(value: Any, isa: ISA) -> Iterator[FunctionType]:
    """Those that a value which a function names stands for, in this project's own files."""
    if isinstance(value, Choice):
        yield from _functions(value._there if value._features & isa.has else value._elsewhere, isa)
    elif isinstance(value, Inline):
        yield from _functions(value.function, isa)
    elif isinstance(value, Intrinsic):
        yield from (*_functions(value.emit, isa), *_functions(value.infer, isa))
    elif isinstance(value, FunctionType):
        file = value.__code__.co_filename
        if not file.startswith("<") and ROOT in real(file).parents:
            yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _functions(item, isa)
    elif isinstance(value, property):
        yield from _functions(value.fget, isa)
    elif type(value).__module__.startswith("ggmlpy.") and type(value).__module__ != core.__name__:
        for held in (*vars(type(value)).values(), *_attributes(value)):
            yield from _functions(held, isa)


def _attributes(value: Any) -> list[Any]:
    slots = [name for name in getattr(value, "__slots__", ()) if hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in slots)]


@cache
def real(path: str | Path) -> Path:
    return Path(path).resolve()


def _named_in(function: FunctionType) -> list[Any]:
    """Values of a function's globals and closure, and of modules' attributes that it names."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    names, attributes = _names(function.__code__)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            values += [getattr(value, name) for name in attributes if hasattr(value, name)]
        else:
            values.append(value)
    return values


@cache
def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Names of globals, and of attributes, in code and in functions inside it."""
    names: set[str] = set()
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            names.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            more = _names(constant)
            names |= more[0]
            attributes |= more[1]
    return names, attributes


def functions_of(files: set[Path]) -> list[FunctionType]:
    """Every function that the code in some files has made by now."""
    gc.unfreeze()  # what is frozen (tests/conftest.py freezes what was collected) is not listed
    return [
        function
        for function in gc.get_objects()
        if isinstance(function, FunctionType) and real(function.__code__.co_filename) in files
    ]
