"""What scripts import of llama-cpp-python's helpers."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout


class suppress_stdout_stderr:
    """A context in which what the process writes to standard output and error is dropped, also by
    libraries in C; with `disable`, the default, nothing is."""

    def __init__(self, disable: bool = True) -> None:
        self.disable = disable
        self._undo = ExitStack()

    def __enter__(self) -> suppress_stdout_stderr:
        if self.disable:
            return self
        with ExitStack() as undo:
            nothing = undo.enter_context(open(os.devnull, "w"))  # noqa: PTH123 - no path
            for number in (1, 2):
                copy = os.dup(number)
                undo.callback(os.close, copy)
                undo.callback(os.dup2, copy, number)
                os.dup2(nothing.fileno(), number)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            undo.enter_context(redirect_stdout(nothing))
            undo.enter_context(redirect_stderr(nothing))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()
