"""Smaller recipes that fail alike: parts are left out, texts cut, numbers made plain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzz.case import Recipe

Fails = Callable[[Recipe], bool]


def shrink(
    recipe: Recipe,
    parts: Sequence[str],
    fails: Fails,
    simpler: Callable[[Recipe], Iterator[Recipe]] = lambda recipe: iter(()),
    n_tries: int = 200,
) -> Recipe:
    """A recipe for which `fails` holds as for this one, after `n_tries` calls at most.

    Elements of the lists named by `parts` are left out as long as it fails, and texts and numbers
    in them simplified; `simpler` proposes whole recipes. Lists in a list count as one element.
    """
    tries = _Tries(fails, n_tries)
    before = None
    while recipe != before and tries.left:
        before = recipe
        for part in parts:
            if isinstance(recipe.get(part), list):
                recipe = _without_elements(recipe, part, tries)
        for candidate in simpler(recipe):
            if tries(candidate):
                recipe = candidate
        for part in parts:
            recipe = _plainer(recipe, part, tries)
    return recipe


class _Tries:
    """`fails`, called so many times at most; after that nothing fails."""

    def __init__(self, fails: Fails, left: int) -> None:
        self._fails = fails
        self.left = left

    def __call__(self, recipe: Recipe) -> bool:
        if not self.left:
            return False
        self.left -= 1
        return self._fails(recipe)


def _without_elements(recipe: Recipe, part: str, fails: Fails) -> Recipe:
    """Delta debugging: leave out halves of the list, then quarters, at last single elements."""
    n = len(recipe[part])
    while n:
        n = max(n // 2, 1)
        at = 0
        while at < len(recipe[part]):
            elements = recipe[part]
            candidate = recipe | {part: elements[:at] + elements[at + n :]}
            if fails(candidate):
                recipe = candidate
            else:
                at += n
        if n == 1:
            break
    return recipe


def _plainer(recipe: Recipe, part: str, fails: Fails) -> Recipe:
    """Each text in the part cut by halves, each number replaced by a plain one, while it fails."""
    for path in list(_leaves(recipe[part], (part,))) if part in recipe else []:
        changed = True
        while changed:
            changed = False
            for value in _simpler_values(_at(recipe, path)):
                candidate = _with(recipe, path, value)
                if fails(candidate):
                    recipe, changed = candidate, True
                    break
    return recipe


def _simpler_values(value: object) -> Iterator[Any]:
    if isinstance(value, str) and len(value) > 8:
        n = len(value) // 2
        yield from (value[:n], value[n:])
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 16:
        yield from (0, 1, value // 2)


def _leaves(value: object, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Paths of texts and numbers, but for what a list begins with: that is what it is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            if i > 0 or not isinstance(inner, str) or len(path) == 1:
                yield from _leaves(inner, (*path, i))
    else:
        yield path


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(recipe: Recipe, path: tuple[Any, ...], value: object) -> Recipe:
    changed = copy.deepcopy(recipe)
    _at(changed, path[:-1])[path[-1]] = value
    return changed
