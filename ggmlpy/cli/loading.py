"""Status lines on stderr while a model loads or something is measured."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from ggmlpy.cli.show import console, say
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.progress import listening

DELAY_S = 1.0  # before anything is shown


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show a spinner with `loading what …` if the block takes long and stderr is a terminal.

    The line also shows the share of the work that is done, as far as that is known.
    """
    spinner = Spinner("dots", f"loading {what} …")

    with _shown(spinner, animated=True) as resume:

        def show(work: str, share: float) -> None:
            spinner.update(text=f"loading {what} … {work}, {share:.0%}")
            resume()

        with listening(show):
            yield


@contextmanager
def downloading(what: str) -> Iterator[None]:
    """As `loading`, for downloads; elsewhere than on a terminal, a line for each file."""
    spinner = Spinner("dots", f"looking for {what} …")
    told = ""

    with _shown(spinner, animated=True) as resume:

        def show(work: str, share: float) -> None:
            nonlocal told
            if sys.stderr.isatty():
                spinner.update(text=f"{work} … {share:.0%}")
                resume()
            elif work != told:
                told = work
                say(f"{work} …")

        with listening(show):
            yield


@contextmanager
def measuring(what: str) -> Iterator[None]:
    """As `loading`, but with a static line: nothing may run beside a measurement."""
    with _shown(Text(f"{what} …", style="dim"), animated=False):
        yield


@contextmanager
def _shown(status: RenderableType, *, animated: bool) -> Iterator[Callable[[], None]]:
    """Show a status on stderr, if that is a terminal, after the block has run for DELAY_S.

    It is removed as soon as anything else is written there: a warning, or the progress of compiling
    kernels. The function that the block is given shows it again, below what was written.
    """
    stderr = sys.stderr
    if not stderr.isatty():
        yield lambda: None
        return
    line = _StatusLine(stderr, status, animated)
    proxy = _WithoutStatus(stderr, line)
    sys.stderr = proxy
    try:
        yield proxy.resume
    finally:
        sys.stderr = stderr
        line.end()
        if proxy.within_line:  # a progress line that was interrupted
            stderr.write("\n")


class _StatusLine:
    """A status that appears after DELAY_S, and can be removed from any thread."""

    def __init__(self, stream: TextIO, status: RenderableType, animated: bool) -> None:
        self._stream = stream
        self._status = status
        self._animated = animated
        self._lock = threading.Lock()
        self._ended = True
        self.begin()

    def begin(self) -> None:
        """Show it after DELAY_S, unless it is shown already or will be."""
        with self._lock:
            if not self._ended:
                return
            self._ended = False
            self._live = Live(
                self._status,
                console=console(self._stream),
                auto_refresh=self._animated,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                refresh_per_second=12.5,
            )
            self._timer = threading.Timer(DELAY_S, self._appear, [self._live])
            self._timer.daemon = True
            with starting_threads():
                self._timer.start()

    def _appear(self, live: Live) -> None:
        with self._lock:
            if not self._ended and live is self._live:
                live.start(refresh=True)

    def end(self) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                self._timer.cancel()
                self._live.stop()


class _WithoutStatus:
    """A stream that removes the status line before it writes."""

    def __init__(self, stream: TextIO, line: _StatusLine) -> None:
        self._stream = stream
        self._line = line
        self.within_line = False

    def write(self, text: str) -> int:
        self._line.end()
        self.within_line = not text.endswith("\n") if text else self.within_line
        return self._stream.write(text)

    def resume(self) -> None:
        """Show the status again, unless a line is not complete."""
        if not self.within_line:
            self._line.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
