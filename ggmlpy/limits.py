"""What the system does not give: packages that cannot be loaded, threads that cannot be started.

Nothing here needs a package that may be what cannot be loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ggmlpy.errors import BackendError

# What importing raises. SystemError: the interpreter's own, where memory ends in the middle of it.
NOT_LOADED = (ImportError, OSError, MemoryError, SystemError)


def memory_limit() -> int | None:
    """The bytes of addresses that this process may use (`ulimit -v`), where they are limited."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def memory_hint() -> str:
    """That the limit is the likely reason, to stand behind what failed; "" where there is none."""
    limit = memory_limit()
    if limit is None:
        return ""
    return f" (memory is likely too little: `ulimit -v` is {limit // 1024} KiB)"


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Raise BackendError that says why `what` cannot be imported, if it cannot be."""
    try:
        yield
    except NOT_LOADED as error:
        raise BackendError(cannot_load(what, error)) from error


def cannot_load(what: str, error: BaseException) -> str:
    """Which package, the first reason of all, and whether memory may be short."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    reason = next(iter(str(first).strip().splitlines()), "") or "not enough memory"
    return f"{what} cannot be loaded: {reason}{memory_hint()}"


@contextmanager
def starting_threads() -> Iterator[None]:
    """Raise BackendError where Python cannot start a thread."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise BackendError(f"no thread can be started{memory_hint()}") from error
