"""docs/models.md: the table of benchmarks/llama_archs.py, and the architectures that it has not.

    python -m benchmarks.arch_page      writes the page anew, but for the table: for an architecture
                                        that the table has no row of

The page is written from its rows, and its rows can be read from it, so some of them can be
replaced. The exit status is 1 if the page cannot be written.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peer_logits import N_PROMPT, ROOT, PeerError
from ggmlpy.models import ARCHITECTURES
from ggmlpy.models.architectures import REFUSED
from tests.models.seeded import RECORDED
from tests.models.seeded_specs import COMPARED_WITH_NUMPY, SPECS

SAME_NMSE = 1e-6
HEADINGS = ("architecture", "variant", "NMSE prompt", "NMSE decode", "verdict")
_MADE = re.compile(r"^\d.* of \d+ files; llama-cpp-python (.*), (\d{4}-\d\d-\d\d):$", re.MULTILINE)
_WIDTH = 100
PAGE = ROOT / "docs" / "models.md"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    name: str  # of the file, without its suffix
    verdict: str
    detail: str = ""
    prompt: float | None = None
    decode: float | None = None  # None of a model without memory too

    @property
    def architecture(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def variant(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def cells(self) -> tuple[str, ...]:
        says = f"{self.verdict}: {self.detail}" if self.detail else self.verdict
        return (self.architecture, self.variant, _number(self.prompt), _number(self.decode), says)

    @classmethod
    def of(cls, cells: Sequence[str]) -> Row:
        """The row that has these cells."""
        architecture, variant, prompt, decode, says = cells
        verdict, _, detail = says.partition(": ")
        return cls(f"{architecture}-{variant}", verdict, detail, _value(prompt), _value(decode))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _value(number: str) -> float | None:
    return float(number) if number else None


def summary(rows: Sequence[Row]) -> str:
    """As "96 ok, 3 refused of 99 files"."""
    counted = Counter(row.verdict for row in rows)
    return ", ".join(f"{n} {verdict}" for verdict, n in counted.most_common()) + (
        f" of {len(rows)} files"
    )


def page(rows: Sequence[Row], version: str, date: str) -> str:
    """docs/models.md. Raises PeerError for an architecture that nothing compares."""
    recorded, in_numpy = others(row.architecture for row in rows)
    peerless = ""
    if in_numpy:
        listed = ", ".join(f"{name} (`tests/models/{file}`)" for name, file in in_numpy.items())
        peerless = "\n" + textwrap.fill(
            f"llama.cpp does not have {listed}: compared with a plain forward pass in numpy.",
            _WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )
        peerless += "\n"
    refused = "\n".join(f"- {name}: {reason}" for name, reason in REFUSED.items())
    head = f"""# Architectures

Every architecture that `test-llama-archs`, a test of llama.cpp, makes a model of: small, with
random weights, dense or with a mixture of experts (moe). Both engines run the same {N_PROMPT}
tokens as a prompt and then tokens one at a time. The table has the normalised mean squared error
of ggmlpy's logits against llama.cpp's, with K and V in f32; *ok* means below {SAME_NMSE:g} with
flash attention and without. Of a model that is not causal only the prompt is compared. A text may
follow *ok*: what of the file neither engine uses.

The test makes no model of those in the next list. They are supported, and compared with llama.cpp's
logits of tiny models of `tests/models/seeded_specs/`, as all architectures are in every run of the
tests:

{_filled(recorded)}
{peerless}
Files of these are refused:

{refused}

{summary(rows)}; llama-cpp-python {version}, {date}:

```bash
python benchmarks/llama_archs.py --llama-cpp ~/llama.cpp --peer ~/llama/bin/python \\
    --save docs/models.md
```

"""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row.cells) + " |" for row in rows]
    return head + "\n".join(lines) + "\n"


def others(in_table: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The architectures that are not in the table: those with a recording of llama.cpp, and those
    compared with numpy, with the test's file. Raises PeerError for one that is neither."""
    named = set(in_table)
    with np.load(RECORDED) as kept:
        names = {key.partition("/")[0] for key in kept.files}
    recorded = {SPECS[name].architecture for name in names & SPECS.keys()}
    in_numpy = {SPECS[name].architecture: file for name, file in COMPARED_WITH_NUMPY.items()}
    rest = [name for name in ARCHITECTURES if name not in named]
    if missing := [name for name in rest if name not in recorded | in_numpy.keys()]:
        raise PeerError(
            f"{', '.join(missing)}: neither tests/models/seeded_logits.npz nor COMPARED_WITH_NUMPY"
            " of tests/models/seeded_specs has a model of it, so the page cannot say that it is"
            " compared"
        )
    by_recording = [name for name in rest if name in recorded]
    return by_recording, {name: in_numpy[name] for name in rest if name not in recorded}


def _filled(names: Sequence[str]) -> str:
    text = ", ".join(names) + "." if names else "none."
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def read_page(text: str) -> tuple[list[Row], str, str]:
    """Rows, version and date of a page. Raises ValueError for a text that is none."""
    made, heading = _MADE.search(text), "| " + " | ".join(HEADINGS) + " |\n"
    if made is None or heading not in text:
        raise ValueError("it is no page that benchmarks/llama_archs.py has written")
    rows = []
    for line in text.partition(heading)[2].splitlines()[1:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        rows.append(Row.of([cell.replace("&lt;", "<").replace("\\|", "|") for cell in cells]))
    return rows, made[1], made[2]


def with_rows(path: Path, rows: Sequence[Row], version: str) -> str:
    """The page at `path` with these rows in place of those of the same files. Its date stays that
    of the last whole run. Raises PeerError for one of another llama.cpp, or that cannot be read."""
    try:
        old, made_by, date = read_page(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PeerError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise PeerError(f"{path}: {error}: leave out --only") from error
    if made_by != version:
        raise PeerError(
            f"{path} is of llama-cpp-python {made_by}, this is {version}: leave out --only, so that"
            " all rows are written"
        )
    merged = {row.name: row for row in [*old, *rows]}
    return page([merged[name] for name in sorted(merged)], version, date)


def main() -> int:
    try:
        PAGE.write_text(page(*read_page(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    except (PeerError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
