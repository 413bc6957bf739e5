"""Checks arguments of public functions against their annotations.

int                  a whole number of 64 bits, numpy's too; no bool
float                a real number, numpy's too, also inf and NaN; no bool
bool                 True or False, numpy's too
Sequence[X]          a list, tuple, array or other sequence of X
X | Y, X | None      one of them
Annotated[X, parse]  what `parse` takes
a class              one of its objects
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from ggmlpy.common.scopes import qualified
from ggmlpy.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
Parse = Callable[[Any], Any]  # the value as the function gets it; raises WrongKind

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_NO_NUMBERS = (bool, np.timedelta64)  # which are subclasses of numbers
_MAX_F32 = float(np.finfo(np.float32).max)
_KINDS = {
    "Tensor": "a tensor (ggmlpy.from_numpy makes one of an array)",
    "ndarray": "a numpy array",
    "Callable": "a function",
    "str": "a string",
    "PathLike": "a path",
    "bytes": "bytes",
}


class WrongKind(Exception):
    """What an argument must be, the value that it has instead, and where in it that is."""

    def __init__(self, expected: str, value: object, path: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.path = path


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: convert numbers to `int` and `float`, raise ArgumentError for wrong types.

    The function itself checks what `*args` and `**kwargs` take.
    """
    # Annotations may name what is defined further down, so the first call reads them.
    positional: list[_Parameter] | None = None
    by_name: dict[str, _Parameter] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal positional, by_name
        if positional is None:
            positional, by_name = _parameters(function)
        parsed = []
        try:
            # Most arguments have a type that needs no conversion.
            for known, value in zip(positional, args, strict=False):
                parsed.append(value if type(value) in known.kinds else known.parse(value))
            for name, value in kwargs.items():
                if name in by_name:
                    known = by_name[name]
                    if type(value) not in known.kinds:
                        kwargs[name] = known.parse(value)
        except WrongKind as wrong:
            raise refusal(_called(function, args), known.name, wrong) from None
        return function(*parsed, *args[len(parsed) :], **kwargs)

    return call


def _called(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """The name of a function, or of a method of the class of the object that has it."""
    name = function.__name__
    if args and function.__qualname__ != name and hasattr(type(args[0]), name):
        return f"{type(args[0]).__name__}.{name}".removesuffix(".__init__")
    return function.__qualname__


def refusal(where: str, name: str, wrong: WrongKind) -> ArgumentError:
    """The error for an argument of a wrong type."""
    return ArgumentError(
        f"{qualified(where)}: {name}{wrong.path} is {kind_of(wrong.value)}: it must be {wrong}"
    )


def parsed(parse: Parse, where: str, name: str, value: Any) -> Any:
    """A single argument as `as_int` or another of these makes it. Raises ArgumentError."""
    try:
        return parse(value)
    except WrongKind as wrong:
        raise refusal(where, name, wrong) from None


class _Parameter(NamedTuple):
    name: str
    kinds: frozenset[type]  # types whose objects need no conversion
    parse: Parse  # for all others


def parser_of(hint: Any) -> Parse:
    """What checks and converts values of an annotation. It raises WrongKind."""
    return _parse_of(hint)


def _parameters(function: Callable[..., Any]) -> tuple[list[_Parameter], dict[str, _Parameter]]:
    """The positional parameters, and all parameters by name."""
    hints = typing.get_type_hints(function, include_extras=True)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = []
    for name in names:
        hint = hints.get(name, Any)
        known.append(_Parameter(name, _kinds_of(hint), _parse_of(hint)))
    return known[: code.co_argcount], {p.name: p for p in known}


def _kinds_of(hint: Any) -> frozenset[type]:
    """Types whose objects always fit; not those of numbers, which have a range."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    return frozenset(kind for kind in options if type(kind) is type and kind not in (int, float))


def _parse_of(hint: Any) -> Parse:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    if origin is Annotated:
        parse: Parse = inner[1]
        return parse
    if origin is Sequence:
        return functools.partial(_sequence, _parse_of(inner[0]))
    if _is_union(hint):
        kinds = [_parse_of(kind) for kind in inner if kind is not types.NoneType]
        return functools.partial(_one_of, kinds, types.NoneType in inner)
    return functools.partial(_instance, origin or hint)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _instance(cls: type, value: Any) -> Any:
    if not isinstance(value, cls):
        raise WrongKind(_KINDS.get(cls.__name__) or with_article(cls.__name__), value)
    return value


def as_bool(value: Any) -> bool:
    """True or False. Raises WrongKind."""
    if not isinstance(value, bool | np.bool_):
        raise WrongKind("True or False", value)
    return bool(value)


def as_whole(value: Any) -> int:
    """A whole number of any size as an int. Raises WrongKind."""
    if type(value) is int:
        return value
    if not isinstance(value, Integral) or isinstance(value, _NO_NUMBERS):
        raise WrongKind("a whole number", value)
    return int(value)


def as_int(value: Any) -> int:
    """A whole number of 64 bits as an int. Raises WrongKind."""
    whole = value if type(value) is int else as_whole(value)
    if not _MIN <= whole <= _MAX:
        raise WrongKind(f"a whole number from {_MIN} to {_MAX}", value)
    return whole


def as_float(value: Any) -> float:
    """A number as a float. Raises WrongKind."""
    if type(value) is float and -_MAX_F32 <= value <= _MAX_F32:
        return value
    if not isinstance(value, Real) or isinstance(value, _NO_NUMBERS):
        raise WrongKind("a number", value)
    try:
        real = float(value)
    except OverflowError:
        raise WrongKind("a number that f32 can hold", value) from None
    if abs(real) > _MAX_F32 and math.isfinite(real):  # inf for a kernel
        raise WrongKind("a number that f32 can hold", value)
    return real


_NUMBERS: dict[Any, Parse] = {bool: as_bool, int: as_int, float: as_float}


def is_list(value: Any) -> bool:
    """Whether this is a list, tuple, array or other sequence, and no text."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _sequence(parse: Parse, value: Any) -> tuple[Any, ...]:
    if not is_list(value):
        raise WrongKind("a list, a tuple or an array", value)
    parsed: list[Any] = []
    try:
        parsed.extend(map(parse, value))
    except WrongKind as wrong:
        path = f"[{len(parsed)}]{wrong.path}"
        raise WrongKind(wrong.expected, wrong.value, path) from None
    return tuple(parsed)


def _one_of(parses: list[Parse], or_none: bool, value: Any) -> Any:
    if value is None and or_none:
        return None
    expected = []
    for parse in parses:
        try:
            return parse(value)
        except WrongKind as wrong:
            if wrong.path:  # the right type, with wrong elements
                raise
            expected.append(wrong.expected)
    if or_none:
        expected.append("None")
    raise WrongKind(" or ".join(filter(None, [", ".join(expected[:-1]), expected[-1]])), value)


def kind_of(value: object) -> str:
    """What an argument is: `a float`, `a numpy array (float32, shape (3, 4))`."""
    if isinstance(value, np.ndarray):
        return f"a numpy array ({value.dtype}, shape {value.shape})"
    if isinstance(value, int) and not _MIN <= value <= _MAX:
        return f"a whole number of {value.bit_length() + 1} bits"  # with that of the sign
    if value is None:
        return "None"
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeio" else f"a {name}"
