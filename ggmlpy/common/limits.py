"""Clear errors for what the system refuses: importing a package, starting a thread.

Memory limits are the usual cause, so the messages name the one in force (`ulimit -v`). This module
imports only the standard library and `ggmlpy.errors`: it is needed where numpy cannot be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ggmlpy.errors import BackendError

# What a failed import raises; SystemError comes from the interpreter when memory runs out.
NOT_LOADED = (ImportError, OSError, MemoryError, SystemError)


def memory_limit() -> int | None:
    """The bytes of addresses that this process may use (`ulimit -v`), where they are limited."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def memory_hint() -> str:
    """The end of an error message: that the limit is the likely cause; "" where there is none."""
    limit = memory_limit()
    if limit is None:
        return ""
    return f" (memory is likely too little: `ulimit -v` is {limit // 1024} KiB)"


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Turn a failed import into a BackendError that names `what` and the cause."""
    try:
        yield
    except NOT_LOADED as error:
        raise BackendError(cannot_load(what, error)) from error


def cannot_load(what: str, error: BaseException) -> str:
    """An error message: `what`, the first cause in the chain, and any memory limit."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    reason = next(iter(str(first).strip().splitlines()), "") or "not enough memory"
    return f"{what} cannot be loaded: {reason}{memory_hint()}"


@contextmanager
def starting_threads() -> Iterator[None]:
    """Turn Python's failure to start a thread into a BackendError."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise BackendError(f"no thread can be started{memory_hint()}") from error
