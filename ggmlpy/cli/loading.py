"""A sign of life on stderr while a model loads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.live import Live
from rich.spinner import Spinner

from ggmlpy.cli.show import console

PATIENCE_S = 1.0  # what is ready within this time needs no message


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show a spinner with `loading what …` if the block takes long and stderr is a terminal.

    It makes way for good as soon as anything else is written there: warnings, or the line that
    tells how far the compilation of kernels is.
    """
    stderr = sys.stderr
    if not stderr.isatty():
        yield
        return
    status = _Status(stderr, f"loading {what} …")
    proxy = _Yielding(stderr, status)
    sys.stderr = proxy
    try:
        yield
    finally:
        sys.stderr = stderr
        status.end()
        if proxy.within_line:  # a line that was to tell of progress, and broke off
            stderr.write("\n")


class _Status:
    """A spinner that appears after a while and can be ended from any thread, once and for all."""

    def __init__(self, stream: TextIO, text: str) -> None:
        spinner = Spinner("dots", text)
        self._live = Live(
            spinner,
            console=console(stream),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=12.5,
        )
        self._lock = threading.Lock()
        self._ended = False
        self._timer = threading.Timer(PATIENCE_S, self._begin)
        self._timer.daemon = True
        self._timer.start()

    def _begin(self) -> None:
        with self._lock:
            if not self._ended:
                self._live.start()

    def end(self) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                self._timer.cancel()
                self._live.stop()


class _Yielding:
    """The stream, but for ending the status before anything is written."""

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
