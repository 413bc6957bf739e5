"""What happens when a command does not end well: one line on stderr, and an exit code.

    0    done
    1    a file or a value cannot be used: `ggmlpy: error: …`
    2    the command line itself is wrong: `ggmlpy: error: … (see `ggmlpy … --help`)`
    130  interrupted by Ctrl-C
    141  whoever read the output has gone, as with `| head`

Exceptions of other kinds are bugs of ours, and keep their traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from ggmlpy.cli.help import ReadableHelp
from ggmlpy.cli.show import (
    console,
    open_missing_streams,
    say,
    tolerate_any_text,
)
from ggmlpy.common.limits import memory_hint
from ggmlpy.common.quoting import printable
from ggmlpy.errors import GgmlpyError

FAILED, USAGE, INTERRUPTED, READER_GONE = 1, 2, 130, 141
UsageError: Any = typer.BadParameter.__mro__[1]  # typer has it, but under no name of its own


class GuardedGroup(ReadableHelp, TyperGroup):
    """The commands, with errors turned into a line and an exit code."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command and exit. typer would show what is wrong with the options in a frame."""
        try:
            code = super().main(*args, **{**more, "standalone_mode": False})
        except UsageError as error:
            if type(error).__name__ != "NoArgsIsHelpError":  # which has shown the help
                _complain_of_usage(error)
            sys.exit(USAGE)
        except typer.Abort as abort:  # Ctrl-C outside of a command, which typer turns into this
            if isinstance(abort.__context__, KeyboardInterrupt):
                _stopped()
                sys.exit(INTERRUPTED)
            sys.exit(FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the options, of which --help and --version write."""
        with _written_output():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _written_output(), one_line_warnings():
                return super().invoke(ctx)
        except GgmlpyError as error:
            complain("error", str(error))
            raise typer.Exit(FAILED) from None
        except MemoryError as error:
            complain("error", f"not enough memory: {error}".rstrip(": ") + memory_hint())
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            _stopped()
            raise typer.Exit(INTERRUPTED) from None


def complain(kind: str, message: str) -> None:
    """`ggmlpy: error: message` (or warning) on stderr, on one line whatever the message holds.

    Of a message with more lines, such as a compiler's, the first says where and the last what.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = printable(" ".join(dict.fromkeys([*lines[:1], *lines[-1:]])))
    style = "bold red" if kind == "error" else "yellow"
    out = console(sys.stderr)
    out.print(f"ggmlpy: {kind}:", style=style, end=" ", soft_wrap=True)
    out.print(text, soft_wrap=True)


def _stopped() -> None:
    say("ggmlpy: stopped")


def _complain_of_usage(error: Any) -> None:
    """What is wrong with the command line, and whose help tells what is right."""
    open_missing_streams()
    tolerate_any_text()
    command = "ggmlpy" if error.ctx is None else error.ctx.command_path
    message = " ".join(error.format_message().split()).removesuffix(".")
    complain("error", f"{message} (see `{command} --help`)")


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings meant for users are shown as a line, without the code that raised them."""

    def show(message: Warning | str, *where: object, **more: object) -> None:
        complain("warning", str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


@contextmanager
def _written_output() -> Iterator[None]:
    """Output is flushed here, where a full disk or a reader that has gone has an exit code."""
    open_missing_streams()
    tolerate_any_text()
    try:
        try:
            yield
        except typer.Exit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(READER_GONE) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        complain("error", f"the output cannot be written: {error.strerror}")
        _discard_output()
        raise typer.Exit(FAILED) from None


def _discard_output() -> None:
    """Let what Python still wants to flush at exit go nowhere, where it cannot fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
