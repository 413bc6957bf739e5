"""Splits long text into blocks, which bounds the memory and time of each call of `tokenizers`.

These calls cannot be interrupted, take about 130 bytes of memory per character, and panic if a
regular expression backtracks ten million times. Ten megabytes in one call took 19 s and 1.3 GB (2
cores of a Sapphire-Rapids-class Xeon, 2026-11-22). Merging takes 250 bytes per character of a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

WORD_END = re.compile("(?<=[^\\W_])(?=[ \t\n\r,.\u3002\uff0c])")
"""Between a letter or digit and a space or stop, where nearly all rules split, in any context."""

_N_CHARS = 1 << 15
_MAX_CHARS = 1 << 17  # some tenths of a second if each character is a word


def blocks(
    text: str, seam: re.Pattern[str], n_chars: int = _N_CHARS, max_chars: int = _MAX_CHARS
) -> Iterator[str]:
    """Split `text` every `n_chars` characters, at the next match of `seam`, which has no width.

    Text without a seam is split after `max_chars`, possibly within a word.
    """
    begin = 0
    while len(text) - begin > n_chars:
        end = min(begin + max_chars, len(text))
        found = seam.search(text, begin + n_chars, end)
        end = found.start() if found is not None else end
        yield text[begin:end]
        begin = end
    if begin < len(text):
        yield text[begin:]
