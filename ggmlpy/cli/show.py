"""Output that is safe for any terminal and any string."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from ggmlpy.common.quoting import printable

_UNLIMITED = 10_000  # columns of a stream that is not a terminal, so that tables are not cut


def open_missing_streams() -> None:
    """Open os.devnull for streams that were closed at the start (`>&-`), which are None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  (stays open)
            setattr(sys, name, stream)


def tolerate_any_text() -> None:
    """Make stdout and stderr write `?` for characters that they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def harmless(text: str) -> str:
    r"""The text with newlines and tabs, but other control characters escaped, as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else printable(c) for c in text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, so that `guard` sets the exit code instead of rich."""
        raise BrokenPipeError


def console(stream: IO[str]) -> Console:
    """A console for `stream` that prints text as it is: no markup, emoji codes or highlighting."""
    width = None if stream.isatty() else _UNLIMITED
    return _Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def say(text: str, stream: IO[str] | None = None, style: str = "dim") -> None:
    """Print a line on stderr (or `stream`), styled on a terminal."""
    console(stream or sys.stderr).print(harmless(text), style=style, soft_wrap=True)


class Lossy:
    """A text stream that goes on where nothing can be written, as on a full disk: for the stderr of
    what must not end because of that."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_json(value: Any) -> None:
    """Write one object on a line of stdout, with inf and NaN as strings."""
    print(json.dumps(finite(value), allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    """The value with inf and NaN as strings."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def size_text(n_bytes: int) -> str:
    """`1.19 MB`: three digits, in powers of a thousand."""
    size, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{n_bytes} B" if unit == "B" else f"{_three_digits(size)} {unit}"


def count_text(n: int) -> str:
    """`7.24 B`, as sizes of models are usually given; below a thousand the number itself."""
    count, unit = float(n), ""
    for larger in (" K", " M", " B", " T"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{_three_digits(count)}{unit}" if unit else str(n)


def _three_digits(value: float) -> str:
    """`3.70`, `37.0`, `370`"""
    return f"{value:#.3g}".removesuffix(".")
