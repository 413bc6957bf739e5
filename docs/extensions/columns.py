"""Docstrings for the site: parameters written in columns become Markdown definition lists.

    n_ctx     tokens of all sequences       `n_ctx`
              together                 ->   :   tokens of all sequences together
    n_batch   tokens of a batch             `n_batch`
                                            :   tokens of a batch

Markdown would join the lines of such a paragraph. All other text stays as it is.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from griffe import Extension, Object

_NAMES = re.compile(r"[\w*.]+(?:, [\w*.]+)*")
_ROW = re.compile(rf"({_NAMES.pattern}) {{2,}}(\S.*)")


def with_lists(docstring: str) -> str:
    """The docstring in Markdown, each paragraph of columns as a definition list."""
    blocks = groupby(docstring.splitlines(), key=lambda line: not line.strip())
    return "\n".join(line for _, block in blocks for line in _as_list(list(block)))


def _as_list(lines: list[str]) -> list[str]:
    """A paragraph of columns as a definition list; any other paragraph unchanged."""
    first = _ROW.fullmatch(lines[0])
    if first is None:
        return lines
    described: list[str] = []
    for line in lines:
        row = _row(line, first.start(2))
        if row is not None:
            names = ", ".join(f"`{name}`" for name in row[0].split(", "))
            described += ["", names, f":   {row[1]}"]
        elif line.startswith("  "):
            described[-1] += " " + line.strip()
        else:
            return lines
    return described


def _row(line: str, column: int) -> tuple[str, str] | None:
    """Names and text of a row whose text begins at `column`, or after at least two spaces."""
    names, text = line[:column], line[column:]
    if names.endswith(" ") and _NAMES.fullmatch(names.rstrip()):
        return names.rstrip(), text
    row = _ROW.fullmatch(line)
    return None if row is None else (row[1], row[2])


class Columns(Extension):  # type: ignore[misc]  # griffe is of the docs extra only
    """Rewrites every docstring that griffe reads."""

    def on_object(self, *, obj: Object, **more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)
