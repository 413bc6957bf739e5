"""What `ggmlpy bench` and `batched-bench` print of small cases, read."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Run

REFERENCE = ("--backend", "reference")
SMALL = ("-npp", "4,6", "-ntg", 2, "-npl", "1,3")


def json_lines(run: Run, *args: Any) -> list[dict[str, Any]]:
    outcome = run(*args, *REFERENCE)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    return [json.loads(line) for line in outcome.out.splitlines()]


def table(text: str) -> list[list[str]]:
    """The cells of a Markdown table: its head, then its rows."""
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1, text  # every row is as wide as the head
    assert set(lines[1]) <= set("|-:")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]
