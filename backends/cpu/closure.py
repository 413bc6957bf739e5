"""Digests of what compiled functions are made of: the identity of their machine code.

numba compiles the bytecode of a kernel and of the functions that it calls, with the values of the
globals and of the enclosing functions' variables that they name. An intrinsic is a Python function
that writes LLVM IR, and what it writes depends on the same things. So a digest is taken of bytecode
and of all values that it reaches by name, through any number of functions. Comments, docstrings,
line numbers, and functions and constants that are not used do not count.

A value whose content cannot be told is an error, never left out: stale code would be run. What
belongs to Python, numpy, numba, llvmlite and gguf counts by name; their versions count with every
kernel, as does the compiler's own source (`key.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections import namedtuple
from collections.abc import Iterator
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
from llvmlite import ir

from ggmlpy.backends.cpu.bytecode import code_parts, is_in, loaded_globals, names_in
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import Entry, Inline
from ggmlpy.backends.cpu.simd import core
from ggmlpy.errors import KernelError

_BY_VERSION = frozenset(sys.stdlib_module_names) | {"gguf", "llvmlite", "numba", "numpy"}
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, range, type(...)})
_OF_IR = (core.Scalar, core.Vec, core.Tile, core.Const)  # their repr is all that they hold
_OF_LLVM = (ir.Type, ir.Constant)  # which print as all that they hold
_MAKERS = ("dataclasses", "collections")  # of methods, from the names of fields
_TUPLE_FIELD = type(vars(namedtuple("_", "field"))["field"])
_WRAPPERS = (staticmethod, classmethod, functools._lru_cache_wrapper)

Parts = tuple[Any, ...]  # of plain values, which print unmistakably


class _Part:
    """Stands in a value's parts for another one that may lead back to it, its next child."""

    def __repr__(self) -> str:
        return "<part>"


_PART = _Part()


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """A value: what can be told of it alone, and the values that it holds or names, in order."""

    value: Any  # kept, so that no other value gets its id
    own: bytes
    children: list[Any]


class Closures:
    """Digests for one instruction set. What functions share is looked at once."""

    def __init__(self, isa: ISA) -> None:
        self._isa = isa
        self._nodes: dict[int, _Node] = {}  # by the id of their values

    def of_entry(self, entry: Entry) -> str:
        """Of a compiled function with all that is compiled into it.

        Raises KernelError where it depends on something whose content cannot be told.
        """
        record = None if entry.record is None else _dtype(entry.record)
        declared = repr((entry.params, entry.result, record))
        return hashlib.sha256(declared.encode() + self._digest(entry.function)).hexdigest()

    def of(self, value: Any) -> str:
        """Of any other value with all that it reaches. Raises KernelError as `of_entry` does."""
        return self._digest([value]).hex()

    def functions(self, entry: Entry) -> list[FunctionType]:
        """All that `of_entry` takes into account."""
        nodes = (node for node, _ in self._reached(entry.function))
        return [node.value for node in nodes if isinstance(node.value, FunctionType)]

    def _digest(self, start: Any) -> bytes:
        parts = (node.own + repr(children).encode() for node, children in self._reached(start))
        return hashlib.sha256(b"".join(parts)).digest()

    def _reached(self, start: Any) -> Iterator[tuple[_Node, list[int]]]:
        """All that a value reaches, in the order of meeting, and the numbers in it of what each
        holds. So one that is met again counts by its number, also where the way is a circle."""
        numbers, queue = {id(start): 0}, [start]
        for value in queue:
            node = self._node(value)
            children = []
            for child in node.children:
                number = numbers.setdefault(id(child), len(numbers))
                if number == len(queue):
                    queue.append(child)
                children.append(number)
            yield node, children

    def _node(self, value: Any) -> _Node:
        found = self._nodes.get(id(value))
        if found is None:
            children: list[Any] = []
            parts = _Parts(self._isa, children).of(value)
            own = hashlib.sha256(repr(parts).encode()).digest()
            found = self._nodes[id(value)] = _Node(value, own, children)
        return found


class _Parts:
    """What a value consists of; values that lead further become `children`."""

    def __init__(self, isa: ISA, children: list[Any]) -> None:
        self._isa = isa
        self._children = children

    def of(self, value: Any) -> Parts:
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, MethodType):
            return "method", self.part(value.__func__), self.part(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", *map(self.part, (value.func, value.args, value.keywords))
        if isinstance(value, _WRAPPERS):
            return type(value).__name__, self.part(value.__wrapped__)
        if isinstance(value, property):
            return "property", self.part(value.fget), self.part(value.fset)
        return self._data(value)

    def part(self, value: Any) -> Any:
        """A value inside another: as it is where that says all, else a child."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Inline):
            return "inline", self.part(value.on(self._isa).function)
        if isinstance(value, core.Intrinsic):
            return "intrinsic", self.part(value.emit), self.part(value.infer)
        if isinstance(value, _OF_IR):
            return "type", repr(value)
        if _counts_by_name(value):
            return "named", _qualified(value)
        if type(value) is tuple:
            return "tuple", *map(self.part, value)
        self._children.append(value)
        return _PART

    def _data(self, value: Any) -> Parts:
        if isinstance(value, Enum):
            return "member", self.part(type(value)), value.name
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            content = hashlib.sha256(value.tobytes()).digest()
            return "array", _dtype(value.dtype), value.shape, content
        if isinstance(value, np.dtype):
            return "dtype", _dtype(value)
        if isinstance(value, _OF_LLVM) and not isinstance(value, ir.IdentifiedStructType):
            return "ir", type(value).__name__, str(value)
        if type(value) is list or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return "sequence", self.part(type(value)), *map(self.part, value)
        if type(value) in (set, frozenset) and all(type(item) in _PLAIN for item in value):
            return "set", *sorted(map(repr, value))
        if type(value) in (dict, MappingProxyType):
            return "dict", *((self.part(key), self.part(item)) for key, item in value.items())
        if _is_plain_instance(value):
            attributes = [(name, self.part(item)) for name, item in _attributes(value)]
            return "instance", self.part(type(value)), attributes
        raise KernelError(
            f"{value!r:.80} is a {_qualified(type(value))}: what that holds cannot be told, so"
            " compiled code that depends on it cannot be kept"
        )

    def _function(self, function: FunctionType) -> Parts:
        code = function.__code__
        named = [
            (name, self._global(function.__globals__[name], code))
            for name in dict.fromkeys(loaded_globals(code))
            if is_in(function.__globals__, name, code)
        ]
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        others = function.__defaults__, function.__kwdefaults__, function.__dict__ or None
        return "function", code_parts(code, function.__doc__), named, cells, *map(self.part, others)

    def _cell(self, cell: Any) -> Any:
        try:
            return self.part(cell.cell_contents)
        except ValueError:
            return "empty"  # assigned later, or never

    def _global(self, value: Any, code: CodeType) -> Any:
        """Of a module, only what the code names of it."""
        if not isinstance(value, ModuleType):
            return self.part(value)
        if value.__name__.split(".")[0] in _BY_VERSION:
            return "module", value.__name__
        names = [name for name in dict.fromkeys(names_in(code)) if name in vars(value)]
        if not names:
            raise KernelError(f"{code.co_qualname} uses {value.__name__}, but nothing named in it")
        return [(name, self._global(vars(value)[name], code)) for name in names]

    def _class(self, class_: type) -> Parts:
        """Its methods, constants and bases. What Python makes of its fields follows from these."""
        fields = list(getattr(class_, "__dataclass_fields__", {}))
        bases = [self.part(base) for base in class_.__bases__]
        members = [
            (name, self.part(member))
            for name, member in sorted(vars(class_).items())
            if _is_written(class_, name, member)
        ]
        if issubclass(class_, Enum):
            members += [(name, self.part(one.value)) for name, one in class_.__members__.items()]
        return "class", _qualified(class_), fields, bases, members


def _is_written(class_: type, name: str, member: Any) -> bool:
    """Whether a class's source has the member: its methods, and the values that it names."""
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    if isinstance(member, FunctionType):
        made = member.__code__.co_filename.startswith("<")
        return not made and member.__globals__.get("__name__") not in _MAKERS
    if isinstance(member, property):
        return True
    if isinstance(member, MemberDescriptorType | GetSetDescriptorType | _TUPLE_FIELD):
        return False
    return not (issubclass(class_, Enum) or name.startswith("__") or name == "_abc_impl")


def _counts_by_name(value: Any) -> bool:
    """Whether a function or class belongs to a library, or is one of the compiler's classes."""
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    if not isinstance(value, FunctionType | type | np.ufunc):
        return False
    if isinstance(value, type) and value.__module__ == core.__name__:
        return True
    return (value.__module__ or "builtins").split(".")[0] in _BY_VERSION


def _is_plain_instance(value: Any) -> bool:
    """Whether its attributes are all that an object holds: no class of it is a library's."""
    classes = [class_ for class_ in type(value).__mro__ if class_ is not object]
    return bool(classes) and not any(map(_counts_by_name, classes))


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """All that an object has, by name."""
    slots = [
        name
        for class_ in type(value).__mro__
        for name, member in vars(class_).items()
        if isinstance(member, MemberDescriptorType) and hasattr(value, name)
    ]
    return [
        *((name, getattr(value, name)) for name in slots),
        *getattr(value, "__dict__", {}).items(),
    ]


def _qualified(value: Any) -> str:
    module = getattr(value, "__module__", None) or "builtins"
    return f"{module}.{getattr(value, '__qualname__', repr(value))}"


def _dtype(dtype: np.dtype) -> Parts:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return "array of", _dtype(base), shape
    if dtype.fields is None:
        return "plain", dtype.str
    fields = [(name, _dtype(dtype.fields[name][0]), dtype.fields[name][1]) for name in dtype.fields]
    return "record", dtype.itemsize, dtype.isalignedstruct, fields
