"""Names of the nodes that are being built, in llama.cpp's form: `name-3` in layer 3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a node's name gets in front of it and behind it."""

    prefix: str = ""
    suffix: str = ""


_scope: ContextVar[_Scope] = ContextVar("ggmlpy_scope", default=_Scope())  # noqa: B039  (frozen)


@contextmanager
def scope(name: str = "", *, layer: int | None = None) -> Iterator[None]:
    """Name the nodes built inside after where they are, in errors, dumps and profiles.

    `scope("conv")` puts `conv.` before their names. `scope(layer=3)` puts `-3` behind them, as
    llama.cpp writes the layer: `Qcur-3`. Scopes nest; the innermost layer counts.
    """
    outer = _scope.get()
    prefix = f"{outer.prefix}{name}." if name else outer.prefix
    suffix = outer.suffix if layer is None else f"-{layer}"
    token = _scope.set(_Scope(prefix, suffix))
    try:
        yield
    finally:
        _scope.reset(token)


def qualified(name: str) -> str:
    """`name` inside the current scope."""
    current = _scope.get()
    return f"{current.prefix}{name}{current.suffix}"


def in_scope() -> bool:
    """Whether nodes are being built inside a scope."""
    return _scope.get() != _Scope()
