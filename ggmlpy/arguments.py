"""Arguments of public functions, held against their annotations before anything is done with them.

int             a whole number of 64 bits, numpy's too; no bool
float           a real number, numpy's too; inf and NaN are some; no bool
Sequence[X]     a list, tuple, array or other sequence of X
X | Y, X | None one of them
a class         one of its objects
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from ggmlpy.errors import ArgumentError
from ggmlpy.scopes import qualified

P = ParamSpec("P")
R = TypeVar("R")
Parse = Callable[[Any], Any]  # the value as the function gets it

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_NO_NUMBERS = (bool, np.timedelta64)  # which are subclasses of numbers
_MAX_F32 = float(np.finfo(np.float32).max)
_KINDS = {
    "Tensor": "a tensor (ggmlpy.from_numpy makes one of an array)",
    "ndarray": "a numpy array",
    "Callable": "a function",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: numbers become `int` and `float`, and other kinds are an ArgumentError.

    What `*args` and `**kwargs` take is left to the function.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        positional, by_name = _parameters(function)
        parsed = []
        try:
            for parameter, value in zip(positional, args, strict=False):
                parsed.append(parameter.parse(value))
            for name, value in kwargs.items():
                if name in by_name:
                    parameter = by_name[name]
                    kwargs[name] = parameter.parse(value)
        except WrongKind as wrong:
            raise ArgumentError(
                f"{qualified(function.__qualname__)}: {parameter.name} is {kind_of(value)}: "
                f"it must be {wrong}"
            ) from None
        return function(*parsed, *args[len(parsed) :], **kwargs)

    return call


class Parameter(NamedTuple):
    name: str
    parse: Parse


class WrongKind(Exception):
    """Says what the value must be."""


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[list[Parameter], dict[str, Parameter]]:
    """Those that may be given by their place, and all of them by name."""
    hints = typing.get_type_hints(function)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = [Parameter(name, _parse_of(hints.get(name, Any))) for name in names]
    return known[: code.co_argcount], {p.name: p for p in known}


def _parse_of(hint: Any) -> Parse:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint is int:
        return as_int
    if hint is float:
        return as_float
    if origin is Sequence:
        return functools.partial(_sequence, _parse_of(inner[0]))
    if origin in (types.UnionType, typing.Union):
        kinds = [_parse_of(kind) for kind in inner if kind is not types.NoneType]
        return functools.partial(_one_of, kinds, types.NoneType in inner)
    return functools.partial(_instance, origin or hint)


def _instance(cls: type, value: Any) -> Any:
    if not isinstance(value, cls):
        raise WrongKind(_KINDS.get(cls.__name__) or with_article(cls.__name__))
    return value


def as_int(value: Any) -> int:
    """A whole number as an int. Raises WrongKind."""
    if type(value) is not int:
        if not isinstance(value, Integral) or isinstance(value, _NO_NUMBERS):
            raise WrongKind("a whole number")
        value = int(value)
    if not _MIN <= value <= _MAX:
        raise WrongKind("a whole number of at most 64 bits")
    whole: int = value
    return whole


def as_float(value: Any) -> float:
    """A number as a float. Raises WrongKind."""
    if type(value) is not float:
        if not isinstance(value, Real) or isinstance(value, _NO_NUMBERS):
            raise WrongKind("a number")
        try:
            value = float(value)
        except OverflowError:
            raise WrongKind("a number that f32 can hold") from None
    if abs(value) > _MAX_F32 and math.isfinite(value):  # a kernel would take it as inf
        raise WrongKind("a number that f32 can hold")
    real: float = value
    return real


def _sequence(parse: Parse, value: Any) -> tuple[Any, ...]:
    flat = isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and value.ndim == 0)
    if flat or not isinstance(value, Sequence | np.ndarray):
        raise WrongKind("a list, a tuple or an array")
    return tuple(map(parse, value))


def _one_of(parses: list[Parse], or_none: bool, value: Any) -> Any:
    if value is None and or_none:
        return None
    kinds = []
    for parse in parses:
        try:
            return parse(value)
        except WrongKind as wrong:
            kinds.append(str(wrong))
    raise WrongKind(" or ".join([*kinds, "None"] if or_none else kinds))


def kind_of(value: object) -> str:
    """`a float`, `a numpy array (float32, shape (3, 4))`: what stands where another kind must."""
    if isinstance(value, np.ndarray):
        return f"a numpy array ({value.dtype}, shape {value.shape})"
    if isinstance(value, int) and not _MIN <= value <= _MAX:
        return f"a whole number of {value.bit_length()} bits"
    if value is None:
        return "None"
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeio" else f"a {name}"
