"""How far a long piece of work is, for whoever wants to show it.

with listening(lambda what, share: print(f"{what}: {share:.0%}")):
    llm = Llama("model.gguf")                # packing weights: 0 %, …, packing weights: 100 %
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float], None]  # what is done, and how much of it, from 0 to 1

_listener: ContextVar[Listener | None] = ContextVar("ggmlpy_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Work that this thread does in the block is told to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(what: str, share: float) -> None:
    """Say that so much of something is done; without a listener it costs nothing."""
    listener = _listener.get()
    if listener is not None:
        listener(what, share)
