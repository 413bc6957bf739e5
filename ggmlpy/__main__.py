"""The entry point of `python -m ggmlpy` and of `ggmlpy`: handles Ctrl-C before anything loads."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130  # as in cli/guard.py, which is not imported yet when this is needed


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    """End the process before `main` has begun."""
    os.write(2, b"ggmlpy: stopped\n")
    os._exit(INTERRUPTED)


def _is_default() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt: not under nohup."""
    return signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _stop_at_once)


_IS_PROGRAM = __name__ == "__main__" or os.path.basename(sys.argv[0]).startswith("ggmlpy")  # noqa: PTH119
if _IS_PROGRAM and _is_default():
    signal.signal(signal.SIGINT, _stop_at_once)

# Whatever takes time to import comes after the handler.
import _thread  # noqa: E402
import threading  # noqa: E402
from contextlib import suppress  # noqa: E402

from ggmlpy.common.limits import NOT_LOADED, cannot_load, importing, memory_limit  # noqa: E402
from ggmlpy.errors import BackendError  # noqa: E402


def main() -> None:
    """Import the command line and run the command that the arguments name."""
    if _is_default():
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable
    if memory_limit() is not None:  # OpenBLAS ends a process if it cannot start threads
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with importing("the command line"):
            from ggmlpy.cli import main as run
        run()
    except BackendError as error:
        sys.exit(f"ggmlpy: error: {error}")
    except NOT_LOADED as error:  # from a command's own imports
        if memory_limit() is None:
            raise
        sys.exit(f"ggmlpy: error: {cannot_load('what the command needs', error)}")
    except KeyboardInterrupt:
        _stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt where a command can take it, and end the process elsewhere.

    During an import no command can: C code turns it into other errors, such as numpy's advice on a
    bad installation.
    """
    files = set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    guard = sys.modules.get("ggmlpy.cli.guard")
    if guard is not None and guard.__file__ in files and _IMPORTING not in files:
        raise KeyboardInterrupt
    _stop()


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that was raised in a finalizer, where Python drops exceptions.

    Closing a generator before its end is one. Another thread sends the signal, since one that
    arrives while this function runs would be dropped too.
    """
    if not issubclass(error.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(error)
        return
    try:
        threading.Timer(_AGAIN_S, _send_interrupt, [threading.get_ident()]).start()
    except RuntimeError:  # the system gives no thread
        _stop()


def _send_interrupt(thread: int) -> None:
    """Send SIGINT to the main thread, whose identifier `thread` is."""
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(thread, signal.SIGINT)  # which ends a sleep too


_AGAIN_S = 0.01
_IMPORTING = "<frozen importlib._bootstrap>"  # the file of the import system's own functions


def _stop() -> None:
    """End the process now. Write buffered output first, and clear a progress line on a terminal."""
    with suppress(Exception):  # no stdout, a closed pipe, or a flush that this interrupted
        sys.stdout.flush()
    with suppress(OSError):
        clear = b"\r\x1b[2K\x1b[?25h" if os.isatty(2) else b""  # erase the line, show the cursor
        os.write(2, clear + b"ggmlpy: stopped\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
