"""Runs a command and ends the process: an error is one line on stderr, and an exit code.

    0    success
    1    a file or a value cannot be used: `ggmlpy: error: …`
    2    the command line itself is wrong: `ggmlpy: error: … (see `ggmlpy … --help`)`
    130  interrupted by Ctrl-C
    141  the reader of the output is gone, as with `| head`

Exceptions of other kinds are bugs, and keep their traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from ggmlpy.cli.show import console, open_missing_streams, say, tolerate_any_text
from ggmlpy.common.limits import memory_hint
from ggmlpy.common.quoting import printable
from ggmlpy.errors import GgmlpyError

# How errors name what a command has options for.
_AS_OPTIONS = (
    (re.compile(r"\bn_ctx(?:_seq)?=(\d+)"), r"-c \1"),
    (re.compile(r"\bn_ubatch=(\d+)"), r"-ub \1"),
)
FAILED, USAGE, INTERRUPTED, READER_GONE = 1, 2, 130, 141


def run(app: click.Command, args: Sequence[str] | None = None) -> NoReturn:
    """Run `app` on `args`, or else on the arguments of the process, and exit."""
    open_missing_streams()
    tolerate_any_text()
    sys.exit(_exit_code(app, list(sys.argv[1:] if args is None else args)))


def _exit_code(app: click.Command, args: list[str]) -> int:
    try:
        with _flushed_output(), one_line_warnings():
            return _invoked(app, args)
    except click.UsageError as error:
        complain("error", _usage_text(error))
        return USAGE
    except KeyboardInterrupt:
        say("ggmlpy: stopped")
        return INTERRUPTED
    except GgmlpyError as error:
        hint = memory_hint() if isinstance(error, MemoryError) else ""
        complain("error", f"{error}{hint}")
    except MemoryError as error:
        complain("error", f"not enough memory: {error}".rstrip(": ") + memory_hint())
    except _OutputError as error:
        _discard_output()
        if error.reader_gone:
            return READER_GONE
        complain("error", f"the output cannot be written: {error}")
    return FAILED


def _invoked(app: click.Command, args: list[str]) -> int:
    """Run the command. `app.main` would handle Ctrl-C and closed pipes in another way."""
    try:
        with app.make_context("ggmlpy", args) as context:
            app.invoke(context)
    except click.exceptions.NoArgsIsHelpError as help:
        print(help.format_message())
        return USAGE
    except click.exceptions.Exit as end:  # after --help and --version
        return end.exit_code
    return 0


def _usage_text(error: click.UsageError) -> str:
    """What is wrong with the command line, and the command that shows its help."""
    command = "ggmlpy" if error.ctx is None else error.ctx.command_path
    message = " ".join(_message(error).split()).removesuffix(".")
    return f"{message} (see `{command} --help`)"


def _message(error: click.UsageError) -> str:
    """The message, and before it the names of an option whose value is meant."""
    if not isinstance(error, click.BadParameter) or isinstance(error, click.MissingParameter):
        return error.format_message()
    if error.param_hint is None and error.param is None:
        return error.message
    hint = error.param_hint or (error.param and error.param.get_error_hint(error.ctx))
    return f"{hint}: {error.message}"


def complain(kind: str, message: str) -> None:
    """`ggmlpy: error: message` (or warning) on stderr, in one line.

    Of a message with several lines, such as a compiler's, the first and the last are shown; rules
    of dashes do not count.
    """
    if kind == "error":
        for pattern, option in _AS_OPTIONS:
            message = pattern.sub(option, message)
    lines = [line.strip() for line in message.splitlines() if line.strip(" -")]
    text = printable(" ".join(dict.fromkeys([*lines[:1], *lines[-1:]])))
    style = "bold red" if kind == "error" else "yellow"
    out = console(sys.stderr)
    out.print(f"ggmlpy: {kind}:", style=style, end=" ", soft_wrap=True)
    out.print(text, soft_wrap=True)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show warnings for users as one line, without the source line that raised them."""

    def show(message: Warning | str, *where: object, **more: object) -> None:
        complain("warning", str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


class _OutputError(Exception):
    """The output cannot be written: the pipe is closed, or the disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror)
        self.reader_gone = isinstance(cause, BrokenPipeError)


@contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush the output at the end, where an error still has an exit code."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno == errno.ENOSPC:
            raise _OutputError(error) from None
        raise


def _discard_output() -> None:
    """Redirect streams that cannot be flushed to os.devnull, so that the flush at exit succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
