"""What the digest of a function depends on: all that can change its machine code, and no more."""

from __future__ import annotations

import ast
import dis
import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import CodeType, MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from llvmlite import ir

import ggmlpy.backends.cpu.backend  # which declares all kernels
from ggmlpy.backends.cpu import bytecode, kernel
from ggmlpy.backends.cpu.closure import Closures
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.kernel import Choice, Entry, inline
from ggmlpy.backends.cpu.simd import arith
from ggmlpy.backends.cpu.simd.core import Emitter, f32, i64, intrinsic, void
from ggmlpy.errors import KernelError

GENERIC = select("generic")


def digest(function: Callable[..., Any], **changes: Any) -> str:
    return Closures(GENERIC).of_entry(Entry("entry", function, **({"params": (i64,)} | changes)))


def with_value(value: Any) -> Callable[[Any], Any]:
    """A function that has a value from outside."""
    return lambda x: (x, value)


def defined(source: str, **names: Any) -> Callable[..., Any]:
    """The function `f` of some source text."""
    exec(source, names)
    found: Callable[..., Any] = names["f"]
    return found


class Colour(Enum):
    RED = 1
    BLUE = 2


class Shade(Enum):
    RED = 1
    BLUE = 3


@dataclass(frozen=True)
class Point:
    x: int
    held: Any = None

    def moved(self, n: int) -> int:
        return self.x + n


@dataclass(frozen=True, slots=True)
class Slots:
    x: int


class Pair(NamedTuple):
    x: int
    y: int


def made_class(member: Any) -> Any:
    return type("Made", (), {"member": member})


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


@dataclass(slots=True)
class Ring:
    """Leads back to itself."""

    name: str
    next: Any = field(default=None, repr=False)


def ring(*names: str) -> Ring:
    rings = [Ring(name) for name in names]
    for i, one in enumerate(rings):
        one.next = rings[i - 1]
    return rings[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("1", 1),
        (b"a", "a"),
        ((1, 2), (12,)),
        ((1, (2,)), ((1, 2),)),
        ([1, 2], [2, 1]),
        ([1], (1,)),
        ({1, 2}, {1, 3}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (range(3), range(4)),
        (np.float32(1), np.float32(2)),
        (np.float32(1), np.float64(1)),
        (np.arange(3), np.arange(3)[::-1]),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(1, "i4"), np.zeros(1, "u4")),
        (np.dtype("i4"), np.dtype("i8")),
        (ir.IntType(8), ir.IntType(16)),
        (f32, i64),
        (math.sin, math.cos),
        (int, float),
        (Colour.RED, Colour.BLUE),
        (Point(1), Point(2)),
        (Slots(1), Slots(2)),
        (Pair(1, 2), Pair(2, 1)),
        (Pair(1, 2), (1, 2)),
        (MappingProxyType({1: 2}), MappingProxyType({1: 3})),
        (Colour, Shade),
        (Colour.RED, Shade.RED),
        (made_class(1), made_class(2)),
        (made_class([1]), made_class([2])),
        (made_class(lambda self: 1), made_class(lambda self: 2)),
        (made_class(property(lambda self: 1)), made_class(property(lambda self: 2))),
        (made_class(staticmethod(lambda: 1)), made_class(staticmethod(lambda: 2))),
        (made_class(1)(), made_class(2)()),
        (Point(1, [1]), Point(1, [2])),
        (Plain(1), Plain(2)),
        (Plain(1), Point(1)),
        (functools.partial(int, base=2), functools.partial(int, base=8)),
        (Point(1).moved, Point(2).moved),
        (inline(lambda x: x), inline(lambda x: x + 1)),
        (inline(with_value(1)), inline(with_value(2))),
        (ring("a", "b", "c"), ring("a", "c", "b")),
        (ring("a"), ring("a", "a")),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_count(one: Any, other: Any) -> None:
    assert digest(with_value(one)) != digest(with_value(other))
    assert digest(with_value(one)) == digest(with_value(one))


def test_who_holds_what_counts() -> None:
    """The same functions and values, but for which function has which."""
    add, times = inline(lambda x, y: x + y), inline(lambda x, y: x * y)

    def make(first: Any, second: Any) -> Callable[[Any], Any]:
        one = inline(lambda x: first(x, 1))
        other = inline(lambda x: second(x, 1))
        return lambda x: one(other(x))

    assert digest(make(add, times)) != digest(make(times, add))
    assert digest(make(add, times)) == digest(make(add, times))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x): return x + a", "def f(x): return x + b"),
        ("def f(x, y=1): return x", "def f(x, y=2): return x"),
        ("def f(x, *, y=1): return x", "def f(x, *, y=2): return x"),
        ("def f(x): return [y + 1 for y in x]", "def f(x): return [y + 2 for y in x]"),
        ("def f(x): return x in {1, 2}", "def f(x): return x in {1, 3}"),
        ("def f(x): return (lambda: x + 1)()", "def f(x): return (lambda: x + 2)()"),
    ],
)
def test_bytecode_counts(one: str, other: str) -> None:
    values = {"a": 1, "b": 2}
    assert digest(defined(one, **values)) != digest(defined(other, **values))


@pytest.mark.parametrize(
    "other",
    [
        'def f(x):\n    "Another text."\n    y = x + a  # a comment\n    return y',
        'unused = 5\n\n\ndef f(x):\n    "Text."\n    y = (\n        x + a)\n    return y',
        'def g(x): return 1\ndef f(x):\n    "Text."\n    y = x + a\n    return y\nb = 3',
    ],
)
def test_text_and_what_is_not_used_do_not_count(other: str) -> None:
    one = 'def f(x):\n    "Text."\n    y = x + a\n    return y'
    assert digest(defined(one, a=1)) == digest(defined(other, a=1))


def test_having_run_does_not_count() -> None:
    """Python rewrites the code of what runs often."""
    f = defined("def f(x):\n  for i in range(9): x = x + a.b\n  return x", a=SimpleNamespace(b=1))
    g = defined("def f(x):\n  for i in range(9): x = x + a\n  return x", a=1)
    before = digest(g)
    for _ in range(1000):
        f(1)
        g(1)
    assert digest(g) == before


def test_globals_count_by_value() -> None:
    source = "def f(x): return x + a"
    assert digest(defined(source, a=1)) != digest(defined(source, a=2))
    assert digest(defined(source, a=1, b=1)) == digest(defined(source, a=1, b=2))


def test_an_attribute_is_no_global() -> None:
    """A record's field may be called like something that the module has."""
    source = "def f(p): return p.a"
    assert digest(defined(source, a=1)) == digest(defined(source, a=object()))


def test_of_a_module_counts_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    f = defined("def f(x): return arith.fma(x, x, x)", arith=arith)
    before = digest(f)
    monkeypatch.setattr(arith.quotient, "emit", lambda b, n, d: n)
    assert digest(f) == before
    monkeypatch.setattr(arith.fma, "emit", lambda b, x, y, z: x)
    assert digest(f) != before


def test_names_behind_many_others_are_read() -> None:
    """An instruction has room for 7 bits of a name's number; the others stand before it."""
    many = "; ".join(f"x += n{i}" for i in range(70_000))
    f = defined(f"def f(x):\n  {many}\n  return x", **{f"n{i}": i for i in range(70_000)})
    found = list(bytecode.loaded_globals(f.__code__))
    assert found == [f"n{i}" for i in range(70_000)]


def test_globals_are_those_that_dis_finds() -> None:
    n = 0
    for entry in kernel.all_entries():
        for function in Closures(GENERIC).functions(entry):
            want = [
                instruction.argval
                for instruction in dis.get_instructions(function.__code__)
                if instruction.opname == "LOAD_GLOBAL"
            ]
            nested = any(isinstance(c, CodeType) for c in function.__code__.co_consts)
            got = list(bytecode.loaded_globals(function.__code__))
            assert got[: len(want)] == want
            assert nested or len(got) == len(want)
            n += len(want)
        if n > 5000:
            break
    assert n > 1000


def test_attributes_of_functions_count() -> None:
    one, other = with_value(1), with_value(1)
    vars(other)["n"] = 2
    assert digest(one) != digest(other)


def test_the_intrinsics_rule_of_types_counts() -> None:
    def emit(b: Emitter, x: Any) -> Any:
        return x

    def entry(*types: Any) -> Callable[..., Any]:
        made = intrinsic(*types)(emit)
        return lambda x: made(x)

    assert digest(entry(i64, i64)) != digest(entry(f32, i64))
    assert digest(entry(i64, i64)) == digest(entry(i64, i64))


def test_of_two_functions_the_one_for_the_level_counts() -> None:
    def entry(there: int, elsewhere: int) -> Callable[..., Any]:
        choice = Choice({"amx"}, inline(with_value(there)), inline(with_value(elsewhere)))
        return lambda x: choice(x)

    assert digest(entry(1, 2)) == digest(entry(3, 2)) != digest(entry(1, 4))


def test_what_is_declared_counts() -> None:
    def f(x: Any) -> Any:
        return x

    records = [
        np.dtype([("a", "i4"), ("b", "i8")], align=True),
        np.dtype([("a", "i4"), ("b", "i8")]),
        np.dtype([("a", "i4"), ("c", "i8")], align=True),
        np.dtype([("a", "i4"), ("b", "f8")], align=True),
        np.dtype([("a", "i4"), ("b", "i8", (1,))], align=True),
        np.dtype([("a", "i4"), ("b", [("x", "i8")])], align=True),
    ]
    found = [digest(f, record=record) for record in records]
    found += [digest(f), digest(f, params=(f32,)), digest(f, result=i64)]
    assert len(set(found)) == len(found)
    assert digest(f, result=void) == digest(f)


class Builder(ir.IRBuilder):  # type: ignore[misc]
    """Holds what a library's class does."""


@pytest.mark.parametrize(
    "value", [Builder(), iter([1]), [].append, np.array([None]), Counter("a"), arith]
)
def test_what_cannot_be_told_is_refused(value: Any) -> None:
    with pytest.raises(KernelError, match=r"cannot be told"):
        digest(with_value(value))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("from math import sin; return sin(x)", "f imports"),
        ("return (lambda: __import__('math'))()", "f calls __import__"),
        ("return eval('a')", "f calls eval"),
        ("return globals()['a']", "f calls globals"),
        ("class C: pass\n return C", "f defines a class"),
    ],
)
def test_what_hides_the_values_that_it_uses_is_refused(body: str, what: str) -> None:
    with pytest.raises(KernelError, match=f"{what}: what that uses cannot be told"):
        digest(defined(f"def f(x):\n {body}", a=1))


def test_a_module_of_which_nothing_is_named_is_refused() -> None:
    with pytest.raises(KernelError, match=r"f uses .*simd\.arith, but nothing named in it"):
        digest(defined("def f(x): return getattr(arith, x)", arith=arith))


def test_pytest_rewrites_no_asserts_that_kernels_reach() -> None:
    """It rewrites those of an installed plug-in's whole package, unless a module's docstring has
    its word against that. Rewritten ones lead to pytest's own state, which no key can tell."""
    folder = Path(ggmlpy.backends.cpu.backend.__file__).parent
    for path in (
        path for name in ("formats", "kernels", "simd") for path in (folder / name).glob("*.py")
    ):
        module = ast.parse(path.read_text())
        if any(isinstance(node, ast.Assert) for node in ast.walk(module)):
            assert "PYTEST_DONT_REWRITE" in (ast.get_docstring(module) or ""), path.name
    for entry in kernel.all_entries():
        Closures(GENERIC).of_entry(entry)
