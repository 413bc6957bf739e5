"""The tree of a grammar, as GBNF has it."""

from __future__ import annotations

from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]

_SURROGATES = (0xD800, 0xDFFF)  # which no UTF-8 has
_LAST = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Chars:
    """One of some characters: ascending ranges of code points, ends included, that do not touch."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Token:
    """One token by its number, or by its text as in <think>; or any other one."""

    name: int | str
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Ref:
    """What a rule describes."""

    rule: str


@dataclass(frozen=True, slots=True)
class Seq:
    """One after another; nothing at all if there are no items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """At least `low` times the item, and at most `high` times; None: without limit."""

    item: Node
    low: int
    high: int | None


Node = Chars | Token | Ref | Seq | Alt | Repeat
Rules = dict[str, Node]
"""Bodies by name. The start is "root"."""


def chars(ranges: list[tuple[int, int]], *, negated: bool = False) -> Chars:
    """Any of the code points in `ranges`, or any other one."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    if negated:
        merged = _complement(merged)
    # What is left of them without surrogates.
    below = [(low, min(high, _SURROGATES[0] - 1)) for low, high in merged]
    above = [(max(low, _SURROGATES[1] + 1), high) for low, high in merged]
    return Chars(tuple((low, high) for low, high in below + above if low <= high))


def _complement(merged: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, start = [], 0
    for low, high in merged:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return [*found, (start, _LAST)] if start <= _LAST else found


def seq(items: list[Node]) -> Node:
    """The items one after another."""
    return items[0] if len(items) == 1 else Seq(tuple(items))


def alt(options: list[Node]) -> Node:
    """One of the options."""
    return options[0] if len(options) == 1 else Alt(tuple(options))


def parts(node: Node) -> tuple[Node, ...]:
    """The nodes inside a node, not those of rules that it names."""
    match node:
        case Seq(items):
            return items
        case Alt(options):
            return options
        case Repeat(item):
            return (item,)
    return ()
