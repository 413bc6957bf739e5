"""Tables that are written row by row: Markdown as llama.cpp's tools have it, JSON lines, CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ggmlpy.cli.show import write_json


class Format(StrEnum):
    """The forms of a benchmark's results."""

    md = "md"
    jsonl = "jsonl"
    csv = "csv"


def rate_text(rate: float) -> str:
    """`84.20`, in at most 8 characters up to a hundred million a second."""
    return f"{rate:.2f}" if rate < 99_999.995 else f"{rate:.0f}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, minimum width and alignment."""

    title: str
    width: int = 0
    align: str = ">"  # or "<"

    @property
    def full_width(self) -> int:
        return max(self.width, len(self.title))


class Records:
    """Writes records one by one: JSON lines, or CSV with a header."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._names: list[str] | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record. In CSV, lists are written as JSON."""
        if self._form is Format.jsonl:
            write_json(dict(record))
            return
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if self._names is None:
            self._names = list(record)
            writer.writerow(self._names)
        cells = (json.dumps(v) if isinstance(v, list) else v for v in record.values())
        writer.writerow(cells)
        sys.stdout.flush()


class Table:
    """Prints its head when it is created, and each row when it is added."""

    def __init__(self, columns: Sequence[Column], *, rulers: bool = False) -> None:
        """`rulers` marks right-aligned columns in the line below the head, as Markdown does."""
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
