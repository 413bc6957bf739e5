"""How large a value in a chat template may get, how much it may write, how long it may take.

Everything here raises `Refused`, and where a size is checked, before the large thing is made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

TIME_LIMIT_S = 10.0  # real templates render in milliseconds
MAX_TEXT = 2**24  # characters, of one value or of the result: more than any context holds
MAX_WRITTEN = 2**28  # characters written in all, also into macros and blocks that capture them
MAX_INDENT = 100
_MAX_BITS = 4096  # of an integer

# A width of six digits, or one that is itself an argument, in str.format and %.
_WIDE_FORMAT = re.compile(r"\d{6}|\*|:[^}]*\{")


@dataclass(slots=True)
class _Budget:
    """What one rendering has left."""

    deadline: float
    n_written: int = 0


_budget: ContextVar[_Budget] = ContextVar("budget")


class Refused(Exception):
    """The template is stopped: by itself through `raise_exception`, or at a limit."""


@contextmanager
def limits() -> Iterator[None]:
    """One compilation or rendering: time and written text count from here."""
    token = _budget.set(_Budget(time.monotonic() + TIME_LIMIT_S))
    try:
        yield
    finally:
        _budget.reset(token)


def tick(n_chars: int = 0) -> None:
    """One more step, which writes up to n_chars of the template's own text."""
    budget = _budget.get()
    if time.monotonic() > budget.deadline:
        raise Refused(f"it runs longer than {TIME_LIMIT_S:g} seconds")
    budget.n_written += n_chars
    if budget.n_written > MAX_WRITTEN:
        raise Refused(f"it writes more than {MAX_WRITTEN:,} characters")


def written(value: Any) -> Any:
    """The value itself, counted as output."""
    tick(size(value))
    return value


def check_text(n: int) -> None:
    """Refuse text of n characters, or a list of n elements, if that is too much."""
    if n > MAX_TEXT:
        raise Refused(f"it makes text of more than {MAX_TEXT:,} characters")


def size(value: Any) -> int:
    """About how many characters the value has as text. Refuses at once what is too much.

    Lists that hold one another many times are counted as often as they would be written.
    """
    total = 0
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list | tuple | set | frozenset):
            pending.extend(value)
        elif isinstance(value, Mapping):
            pending.extend(value.keys())
            pending.extend(value.values())
        total += 1
        check_text(total + len(pending))
    return total


def measured(value: Any) -> Any:
    """The value itself, if it is not too large."""
    if isinstance(value, str | list | tuple | Mapping):
        size(value)
    return value


def bounded(value: Any) -> Any:
    """The value itself, if its own length is not too much: quicker than `measured`."""
    if isinstance(value, str | list | tuple | dict):
        check_text(len(value))
    return value


def check_replace(text: str, old: str, new: str) -> None:
    check_text(len(text) + text.count(old) * len(new))


def check_join(separator: str, parts: Iterable[Any]) -> list[Any]:
    """The parts as a list, if they are not too much when joined."""
    listed = list(parts)
    check_text(size(listed) + len(separator) * len(listed))
    return listed


def check_format(text: str, args: Any) -> None:
    """Every field may show all of the arguments."""
    if _WIDE_FORMAT.search(text):
        raise Refused(f"it formats with a width that is too large or not known: {text[:80]!r}")
    n_fields = text.count("{") + text.count("%")
    check_text(len(text) + n_fields * size(args))


def check_indent(width: int | str, n_lines: int) -> None:
    """Refuse to indent so many lines by so many characters, or by a text."""
    n = len(width) if isinstance(width, str) else width
    if n > MAX_INDENT:
        raise Refused(f"it indents by {n}: must be at most {MAX_INDENT}")
    check_text(n_lines * n)


def depth(value: Any) -> int:
    """How deeply lists and dicts are nested in a value of bounded size."""
    n, level = 0, [value]
    while level := [
        inner
        for outer in level
        if isinstance(outer, list | tuple | Mapping)
        for inner in (outer.values() if isinstance(outer, Mapping) else outer)
    ]:
        n += 1
    return n


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse `left operator right` if the result would be too large."""
    if operator == "%":
        if isinstance(left, str):
            check_format(left, right)
    elif operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            check_text(len(left) + len(right))
    elif isinstance(left, int) and isinstance(right, int):
        n_bits = left.bit_length()
        n_bits = n_bits + right.bit_length() if operator == "*" else n_bits * max(right, 0)
        if n_bits > _MAX_BITS:
            raise Refused(f"it computes an integer of more than {_MAX_BITS} bits")
    elif operator == "*":
        for factor, sequence in ((left, right), (right, left)):
            if isinstance(factor, int) and isinstance(sequence, str | list | tuple):
                check_text(size(sequence) * max(factor, 0))
