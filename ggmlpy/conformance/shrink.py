"""The smallest case that still fails: smaller shapes, plainer layouts, types and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ggmlpy.conformance.case import Case
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.types import type_of

Fails = Callable[[Case], bool]


def shrink(case: Case, fails: Fails, max_tries: int = 300) -> Case:
    """A smallest variant of `case` for which `fails` is true, by greedy steps.

    `fails` runs a variant. One that cannot be built (GgmlpyError, or an error in its builder) does
    not count as failing. `case` itself must fail.
    """
    tries = _Tries(fails, max_tries)
    found: Case | None = case
    while found is not None:
        case = found
        found = next((smaller for smaller in _smaller(case) if tries.fails(smaller)), None)
    return case


@dataclass(slots=True)
class _Tries:
    run: Fails
    left: int

    def fails(self, case: Case) -> bool:
        """Whether a variant fails; False once no tries are left."""
        if self.left <= 0:
            return False
        self.left -= 1
        try:
            return self.run(case)
        except (GgmlpyError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
            return False


def _smaller(case: Case) -> Iterator[Case]:
    """Variants of a case, those that make most difference first."""
    yield from _smaller_counts(case)
    for i, layout in enumerate(case.layouts):
        if layout:
            yield _variant(case, layouts=_set(case.layouts, i, ""))
    for name in case.params:
        yield _variant(case, params={k: v for k, v in case.params.items() if k != name})
    for i, type in enumerate(case.types):
        if type not in ("f32", "i32"):
            plain = "f32" if type_of(type).is_float or type_of(type).is_quantized else "i32"
            yield _variant(case, types=_set(case.types, i, plain))


def _smaller_counts(case: Case) -> Iterator[Case]:
    """One number of the shapes is replaced by a smaller one: everywhere, or in one place."""
    numbers = sorted({n for ne in case.ne for n in ne if n > 1}, reverse=True)
    for number in numbers:
        for less in _less(number):
            yield _variant(
                case, ne=tuple(tuple(less if n == number else n for n in ne) for ne in case.ne)
            )
    for i, ne in enumerate(case.ne):
        for dim, number in enumerate(ne):
            for less in _less(number):
                yield _variant(case, ne=_set(case.ne, i, _set(ne, dim, less)))


def _less(number: int) -> list[int]:
    """Smaller numbers to try: blocks of quantised types are among them."""
    tried = (1, 2, 32, 64, 256, number // 4, number // 2, number - 256, number - 32, number - 1)
    return [n for n in dict.fromkeys(tried) if 0 < n < number]


def _set(values: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])


def _variant(case: Case, **changed: Any) -> Case:
    params = changed.pop("params", case.params)
    given: dict[str, Any] = {
        "ne": case.ne,
        "types": case.types,
        "layouts": case.layouts,
        "span": case.span,
        **changed,
    }
    return Case(case.op, **given, **params)
