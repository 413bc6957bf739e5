"""The table of `Llama.describe`, read."""

from __future__ import annotations

import re

from ggmlpy import Llama


def table(llm: Llama) -> dict[str, str]:
    """The rows of `describe` by name."""
    rows = [re.fullmatch(r"(\S.*?|  \S.*?)  +(\S.*)", line) for line in llm.describe().splitlines()]
    return {row[1].strip(): row[2] for row in rows if row}
