"""What the library has to say: to the logger "ggmlpy", or else on stderr.

`logging.getLogger("ggmlpy")` gets it where logging is set up to show it, as after
`logging.basicConfig(level=logging.INFO)`. Where it is not, what was asked for (`verbose=True`) and
what explains a wait or a choice is printed.
"""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("ggmlpy")


def show(text: str, *, printed: bool = True, level: int = logging.INFO) -> None:
    """Log `text`, of one line or several, or with `printed` print it where nobody listens."""
    if is_logged(level):
        logger.log(level, "%s", text)
    elif printed and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def is_logged(level: int = logging.INFO) -> bool:
    """Whether a message of this level reaches a handler."""
    return logger.isEnabledFor(level) and logger.hasHandlers()
