"""Counts that are known only when a graph runs: a bound, and a linear form over symbols.

    T = Symbol("T", 512)               a number of tokens from 1 to 512
    x = zeros("f32", (4096, T.count))  f32 [4096, T]: memory for 512 rows, of which a run uses T
    executable.set_counts({T: 5})

A Count is the int of its bound, by which shapes are checked, strides are made and memory is
planned. It keeps its form through +, - and * with whole numbers and through // without remainder.
Everything else that can be done with an int gives a plain int of the bound. `min` and `max` compare
bounds and return one of the two, which is no maximum of the values: do not use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ggmlpy.common.arguments import WrongKind, as_int
from ggmlpy.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number from 1 to `bound` that is set before each run. Equal ones are one symbol."""

    name: str
    bound: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ArgumentError(f"Symbol: name is {self.name!r}: it must be an identifier")
        if type(self.bound) is not int or self.bound < 1:
            raise ArgumentError(f"Symbol: bound is {self.bound!r}: it must be an int of at least 1")

    @property
    def count(self) -> Count:
        """The count that is this symbol."""
        return Count({self: 1}, 0)

    def __str__(self) -> str:
        return self.name


Counts = Mapping[Symbol, int]  # the values of a run


class Count(int):
    """The bound of a linear form: the sum of coefficients of at least 1 times symbols, and a
    constant.

    Equality, order and hash are those of the bound; `same` compares forms. Its text is the form.
    """

    terms: Mapping[Symbol, int]
    constant: int

    def __new__(cls, terms: Mapping[Symbol, int], constant: int) -> Count:
        assert terms, "a form without symbols is an int"
        bound = constant
        for symbol, k in terms.items():
            assert k > 0, "the bound of a form that falls with a symbol is no bound"
            bound += k * symbol.bound
        made = super().__new__(cls, bound)
        made.terms = terms  # may be another's too: it never changes
        made.constant = constant
        return made

    def __reduce__(self) -> tuple[type[Count], tuple[Mapping[Symbol, int], int]]:
        return Count, (dict(self.terms), self.constant)

    def at(self, counts: Counts) -> int:
        """The value of the form. Raises KeyError for a symbol without a value."""
        value = self.constant
        for symbol, k in self.terms.items():
            value += k * counts[symbol]
        return value

    @property
    def least(self) -> int:
        """The value where every symbol is 1."""
        return sum(self.terms.values()) + self.constant

    @property
    def varies(self) -> bool:
        """Whether it can have a value other than the bound."""
        return self.least != int(self)

    def same(self, other: int) -> bool:
        """Whether both have the same form, and so the same value in every run."""
        return (
            isinstance(other, Count)
            and self.terms == other.terms
            and self.constant == other.constant
        )

    def _plus(self, other: int, sign: int) -> int:
        """The form + sign * other."""
        if not isinstance(other, Count):
            return Count(self.terms, self.constant + sign * other)
        constant = self.constant + sign * other.constant
        terms = dict(self.terms)
        for symbol, k in other.terms.items():
            terms[symbol] = terms.get(symbol, 0) + sign * k
        left = {symbol: k for symbol, k in terms.items() if k}
        if not left:
            return constant
        if min(left.values()) < 0:  # it grows where the symbol falls: it has no form here
            return int(self) + sign * int(other)
        return Count(left, constant)

    def __add__(self, other: int) -> int:
        return self._plus(other, 1) if isinstance(other, int) else NotImplemented

    def __radd__(self, other: int) -> int:
        return self._plus(other, 1) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: int) -> int:
        return self._plus(other, -1) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, Count) or other <= 0:
            return int(self) * int(other)
        return Count({s: k * other for s, k in self.terms.items()}, self.constant * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, Count) or other <= 0:
            return int(self) // int(other)
        if self.constant % other or any(k % other for k in self.terms.values()):
            return int(self) // other
        return Count({s: k // other for s, k in self.terms.items()}, self.constant // other)

    def __repr__(self) -> str:
        """`T`, `3*S + T`, `T - 1`."""
        terms = [f"{k}*{s.name}" if k != 1 else s.name for s, k in self.terms.items()]
        sign = " - " if self.constant < 0 else " + "
        constant = f"{sign}{abs(self.constant)}" if self.constant else ""
        return " + ".join(terms) + constant

    __str__ = __repr__


def value_of(n: int, counts: Counts) -> int:
    """A count's value in a run; any other int as it is."""
    return n.at(counts) if isinstance(n, Count) else n


def has_counts(values: Iterable[Any]) -> bool:
    """Whether any of them is a count."""
    return any(isinstance(value, Count) for value in values)


def same_counts(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether numbers that are equal by their bounds are equal in every run."""
    return all(
        x.same(y) if isinstance(x, Count) else not isinstance(y, Count)
        for x, y in zip(a, b, strict=True)
    )


# --- arguments of public functions ----------------------------------------------------------------


def as_extent(value: Any) -> int:
    """A whole number of 64 bits, or a Count. Raises WrongKind."""
    return value if isinstance(value, Count) else as_int(value)


def as_fixed(value: Any) -> int:
    """A whole number of 64 bits, but no Count: memory lies by bounds. Raises WrongKind."""
    if isinstance(value, Count):
        raise WrongKind(f"a whole number that does not depend on {value}", value)
    return as_int(value)


Extent = Annotated[int, as_extent]  # of a dimension
Fixed = Annotated[int, as_fixed]  # a stride or an offset
