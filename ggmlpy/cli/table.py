"""A table that grows row by row, as llama.cpp's tools print theirs: Markdown in fixed columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """How the results of a benchmark are written."""

    md = "md"
    jsonl = "jsonl"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, how wide it is at least, and where its values stand."""

    title: str
    width: int = 0
    align: str = ">"  # or "<"

    @property
    def full_width(self) -> int:
        return max(self.width, len(self.title))


class Table:
    """Prints its head when it is made, and each row when it is known."""

    def __init__(self, columns: Sequence[Column], *, rulers: bool = False) -> None:
        """`rulers` marks in the line below the head which columns stand to the right."""
        self._columns = columns
        self.row([column.title for column in columns])
        lines = ["-" * (column.full_width + 2) for column in columns]
        if rulers:
            ends = [":" if column.align == ">" else "-" for column in columns]
            lines = [line[:-1] + end for line, end in zip(lines, ends, strict=True)]
        print(f"|{'|'.join(lines)}|", flush=True)

    def row(self, values: Sequence[str]) -> None:
        cells = [
            f"{value:{column.align}{column.full_width}}"
            for value, column in zip(values, self._columns, strict=True)
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
