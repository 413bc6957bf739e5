"""`python -m ggmlpy …`, and the command `ggmlpy`: Ctrl-C ends it quietly from here on."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # as in cli/guard.py, which is not there yet when this is needed


def main() -> None:
    """Import the commands, and run the one that the arguments name."""
    try:
        from ggmlpy.cli import main as run

        run()
    except KeyboardInterrupt:
        print("ggmlpy: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
