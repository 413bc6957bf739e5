"""What a Python function's bytecode consists of, and which globals it loads."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

from ggmlpy.errors import KernelError

_LOAD_GLOBAL, _EXTENDED = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
# What a function must not do: values obtained in these ways are not named in its code.
_HIDING = {dis.opmap["IMPORT_NAME"]: "imports", dis.opmap["LOAD_BUILD_CLASS"]: "defines a class"}
_HIDING_NAMES = ("eval", "exec", "globals", "__import__")

Parts = tuple[Any, ...]


def code_parts(code: CodeType, doc: str | None = None) -> Parts:
    """All parts of bytecode except its origin and the docstring, which is its first constant."""
    constants = [_constant(constant) for constant in code.co_consts]
    if doc is not None and constants and constants[0] == doc:
        constants[0] = None
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return code.co_code, code.co_exceptiontable, constants, names, counts


def _constant(value: Any) -> Any:
    """A constant in bytecode: a number, text, code, or a tuple or a set of constants."""
    if isinstance(value, CodeType):
        return "code", code_parts(value)
    if isinstance(value, frozenset):
        return "frozenset", *sorted(repr(_constant(item)) for item in value)
    if isinstance(value, tuple):
        return "tuple", *map(_constant, value)
    return value


def loaded_globals(code: CodeType) -> Iterator[str]:
    """Names of the globals that code loads, and functions inside it."""
    operations = code.co_code[::2]  # an instruction has two bytes; the second is its argument
    for operation, what in _HIDING.items():
        if operation in operations:
            raise KernelError(f"{code.co_qualname} {what}: what that uses cannot be told")
    at = operations.find(_LOAD_GLOBAL)
    while at >= 0:
        yield code.co_names[_argument(code.co_code, at) >> 1]  # the lowest bit is a flag
        at = operations.find(_LOAD_GLOBAL, at + 1)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from loaded_globals(constant)


def is_in(names: dict[str, Any], name: str, code: CodeType) -> bool:
    """Whether a global is the module's; others are Python's own."""
    if name not in names and name in _HIDING_NAMES:
        raise KernelError(f"{code.co_qualname} calls {name}: what that uses cannot be told")
    return name in names


def _argument(code: bytes, at: int) -> int:
    """The argument of instruction number `at`; those before it may hold its higher bytes."""
    value, shift = code[2 * at + 1], 8
    while at > 0 and code[2 * at - 2] == _EXTENDED:
        at -= 1
        value |= code[2 * at + 1] << shift
        shift += 8
    return value


def names_in(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in code, and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
