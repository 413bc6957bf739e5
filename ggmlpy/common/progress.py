"""Progress of long work, reported to a listener.

with listening(lambda what, share: print(f"{what}: {share:.0%}")):
    llm = Llama("model.gguf")                # packing weights: 0 %, …, packing weights: 100 %
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float], None]  # the work, and the share of it that is done, 0 to 1

_listener: ContextVar[Listener | None] = ContextVar("ggmlpy_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report the progress of work that this thread does in the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def is_heard() -> bool:
    """Whether anyone listens."""
    return _listener.get() is not None


def tell(what: str, share: float) -> None:
    """Report that a share of some work is done. Does nothing without a listener."""
    listener = _listener.get()
    if listener is not None:
        listener(what, share)
