"""The logger of llama-cpp-python, and how much it lets through.

llama.cpp's messages go to it there. Here nothing of C logs: what a model says at its start is
printed where it is `verbose`, and goes to the logger "ggmlpy".
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from ggmlpy.compat.llama_cpp.library import llama_log_callback as _callback

# By ggml's levels: none, info, warning, error, debug, and a line that goes on.
GGML_LOG_LEVEL_TO_LOGGING_LEVEL = {
    0: logging.CRITICAL,
    1: logging.INFO,
    2: logging.WARNING,
    3: logging.ERROR,
    4: logging.DEBUG,
    5: logging.DEBUG,
}
logger = logging.getLogger("llama-cpp-python")


@_callback
def llama_log_callback(level: int, text: bytes, user_data: Any) -> None:
    """Write a message to stderr, if `logger` lets its level through."""
    if logger.level <= GGML_LOG_LEVEL_TO_LOGGING_LEVEL[level]:
        print(text.decode("utf-8"), end="", flush=True, file=sys.stderr)


def set_verbose(verbose: bool) -> None:
    """Let all messages through, or errors only."""
    logger.setLevel(logging.DEBUG if verbose else logging.ERROR)
