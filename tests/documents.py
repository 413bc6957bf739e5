"""The project's documents, and a program that runs the Python code in them.

    python -m tests.documents [docs/generating.md …]

The blocks of a document run in order in a namespace of its own, as a reader would type them in. A
traceback names the document and the line in it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVER = ROOT / "docs" / "server.md"  # its code asks a server: tests/server/test_documented.py
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def label(path: Path) -> str:
    """A document's path in the tree."""
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def rows_of(document: Path, first_cell: str) -> list[list[str]]:
    """The cells of the table whose header begins with `first_cell`, header first."""
    cells = r"\n(\| " + re.escape(first_cell) + r" \|.*\n(?:\|.*\n)+)"
    found = re.search(cells, text_of(document))
    assert found is not None, f"{label(document)} has no table that begins with {first_cell!r}"
    lines = [line for line in found[1].splitlines() if not line.startswith("|---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def run_code(document: Path) -> None:
    """Run all Python blocks of a document."""
    text = text_of(document)
    namespace = {"__name__": "__main__"}
    for block in PYTHON.finditer(text):
        before = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(before + block[1], document, "exec"), namespace)


if __name__ == "__main__":
    for path in [ROOT / name for name in sys.argv[1:]] or [d for d in DOCUMENTS if d != SERVER]:
        run_code(path)
