"""Progress on stderr while a model loads, or something else takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from ggmlpy.cli.show import console
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.progress import listening

PATIENCE_S = 1.0  # before anything is shown


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show a spinner with `loading what …` if the block takes long and stderr is a terminal.

    The line also shows the share of the work that is done, as far as that is known.
    """
    sign = Spinner("dots", f"loading {what} …")

    def show(work: str, share: float) -> None:
        sign.update(text=f"loading {what} … {work}, {share:.0%}")

    with listening(show), _shown(sign, moves=True):
        yield


@contextmanager
def measuring(what: str) -> Iterator[None]:
    """As `loading`, but with a static line: nothing may run beside a measurement."""
    with _shown(Text(f"{what} …", style="dim"), moves=False):
        yield


@contextmanager
def _shown(sign: RenderableType, *, moves: bool) -> Iterator[None]:
    """Show the sign on stderr, if that is a terminal, once the block takes long.

    It is removed for good as soon as anything else is written there: a warning, or the progress of
    compiling kernels.
    """
    stderr = sys.stderr
    if not stderr.isatty():
        yield
        return
    status = _Status(stderr, sign, moves)
    proxy = _Yielding(stderr, status)
    sys.stderr = proxy
    try:
        yield
    finally:
        sys.stderr = stderr
        status.end()
        if proxy.within_line:  # a progress line that was interrupted
            stderr.write("\n")


class _Status:
    """A sign that appears after a while, and can be removed for good from any thread."""

    def __init__(self, stream: TextIO, sign: RenderableType, moves: bool) -> None:
        self._live = Live(
            sign,
            console=console(stream),
            auto_refresh=moves,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=12.5,
        )
        self._lock = threading.Lock()
        self._ended = False
        self._timer = threading.Timer(PATIENCE_S, self._begin)
        self._timer.daemon = True
        with starting_threads():
            self._timer.start()

    def _begin(self) -> None:
        with self._lock:
            if not self._ended:
                self._live.start(refresh=True)

    def end(self) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                self._timer.cancel()
                self._live.stop()


class _Yielding:
    """The stream; it removes the status before anything is written."""

    def __init__(self, stream: TextIO, status: _Status) -> None:
        self._stream = stream
        self._status = status
        self.within_line = False

    def write(self, text: str) -> int:
        self._status.end()
        self.within_line = not text.endswith("\n") if text else self.within_line
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
