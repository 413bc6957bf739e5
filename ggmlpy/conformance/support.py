"""Which cases of each op backends support, as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.run import computing
from ggmlpy.graph.tensor import Tensor

_HEAD = """\
# Ops

Cases of the conformance suite that backends support, by function and types of sources. A cell has
the number of cases, or how many of them where it is not all; a line without support is empty. What
a backend does not support runs on the next one of its chain, see
[Placement](design.md#placement). The page is written by

```bash
ggmlpy test-ops --mode support -o docs/ops.md
```

"""


@dataclass(frozen=True, slots=True)
class Support:
    """A line of the page: cases of one function and types, and how many each backend supports."""

    op: str
    types: str
    n_cases: int
    supported: tuple[int, ...]


class Supports(Protocol):
    """What is asked of a backend here. Its device need not be on this machine."""

    name: str

    def supports(self, node: Tensor) -> bool: ...


def support_of(backends: Sequence[Supports], cases: Sequence[Case] = CASES) -> list[Support]:
    """One line for each function and combination of types, sorted."""
    counts: dict[tuple[str, str], list[int]] = {}
    for case in cases:
        line = counts.setdefault((case.op, " ".join(case.types)), [0] * (len(backends) + 1))
        nodes = computing(build(case))
        line[0] += 1
        for i, backend in enumerate(backends, 1):
            line[i] += all(map(backend.supports, nodes))
    return [
        Support(op, types, n, tuple(rest)) for (op, types), (n, *rest) in sorted(counts.items())
    ]


def support_page(names: Sequence[str], lines: Sequence[Support]) -> str:
    """The page; lines of one function with the same support are one line."""
    merged: dict[tuple[str, tuple[str, ...]], list[Support]] = {}
    for line in lines:
        cells = tuple(_share(n, line.n_cases) for n in line.supported)
        merged.setdefault((line.op, cells), []).append(line)
    rows = [f"| op | types | cases | {' | '.join(names)} |", f"|---|---|---|{'---|' * len(names)}"]
    for (op, cells), group in merged.items():
        n_cases = sum(line.n_cases for line in group)
        totals = [sum(line.supported[i] for line in group) for i in range(len(names))]
        shown = [_cell(total, n_cases) for total in totals]
        types = ", ".join(dict.fromkeys(line.types or "none" for line in group))
        rows.append(f"| `{op}` | {types} | {n_cases} | {' | '.join(shown)} |")
        assert len(cells) == len(names)
    return _HEAD + "\n".join(rows) + "\n"


def _share(n: int, n_cases: int) -> str:
    return "all" if n == n_cases else "none" if n == 0 else "some"


def _cell(n: int, n_cases: int) -> str:
    return "yes" if n == n_cases else f"{n}" if n else ""
