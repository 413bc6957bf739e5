"""Names of what is being built: nodes made inside `scope("blk.3")` are called `blk.3.…`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_scope: ContextVar[str] = ContextVar("ggmlpy_scope", default="")


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Nodes built inside are named `name.…`, in errors, dumps and profiles. Scopes nest."""
    token = _scope.set(qualified(name))
    try:
        yield
    finally:
        _scope.reset(token)


def qualified(name: str) -> str:
    """`name` inside the current scope."""
    prefix = _scope.get()
    return f"{prefix}.{name}" if prefix else name
