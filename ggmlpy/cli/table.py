"""Tables that are written row by row, in the forms that llama-bench has."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ggmlpy.cli.show import finite, write_json


class Format(StrEnum):
    """The forms of a benchmark's results."""

    md = "md"
    jsonl = "jsonl"
    json = "json"
    csv = "csv"
    sql = "sql"


FORMATS = "md, a table; jsonl, as --json; json, one array; csv; or sql, statements."


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
    """Writes records one by one: JSON lines, a JSON array, CSV with a header, or SQL statements.

    In CSV and SQL, lists are JSON. Used as a context, which ends an array.
    """

    def __init__(self, form: Format, table: str) -> None:
        """`table`: the name of the table in SQL."""
        self._form = form
        self._table = table
        self._n = 0

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *error: object) -> None:
        if self._form is Format.json:
            print("\n]" if self._n else "[]", flush=True)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record; all must have the same names."""
        match self._form:
            case Format.csv:
                writer = csv.writer(sys.stdout, lineterminator="\n")
                if not self._n:
                    writer.writerow(record)
                writer.writerow(map(_as_cell, record.values()))
            case Format.sql:
                if not self._n:
                    print(_creation(self._table, record))
                values = ", ".join(map(_as_sql, record.values()))
                print(f"INSERT INTO {self._table} ({', '.join(record)}) VALUES ({values});")
            case Format.json:
                lines = json.dumps(finite(dict(record)), indent=2).splitlines()
                print(",\n" if self._n else "[\n", end="")
                print("\n".join(f"  {line}" for line in lines), end="")
            case _:
                write_json(dict(record))
        sys.stdout.flush()
        self._n += 1


def _as_cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _creation(table: str, record: Mapping[str, Any]) -> str:
    """The statement that creates a table for records like this one, unless it is there."""
    columns = ",\n".join(f"  {name} {_sql_type(value)}" for name, value in record.items())
    return f"CREATE TABLE IF NOT EXISTS {table} (\n{columns}\n);\n"


def _sql_type(value: Any) -> str:
    if value is None:  # a number in other records
        return "NUMERIC"
    if isinstance(value, int):
        return "INTEGER"
    return "REAL" if isinstance(value, float) else "TEXT"


def _as_sql(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float) and math.isfinite(value):
        return str(int(value)) if isinstance(value, bool) else repr(value)
    text = str(_as_cell(value)).replace("'", "''")
    return f"'{text}'"


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
