"""The selective scan of Mamba."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.scan_teams import (
    LISTS,
    SCAN_ROWS,
    launch_teams,
    team_fits,
)
from ggmlpy.backends.cuda.shapes import blocks, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "s", "x", "dt", "A", "B", "C", "ids")),
        *LISTS,
        ("K", "i4"),
        ("lanes", "i4"),
    ],
    align=True,
)
OF_HEADS, OF_STATES = Form("scan.cu", "scan_of_heads"), Form("scan.cu", "scan_of_states")
_ROWS = {OF_HEADS: 4, OF_STATES: 1}  # of a team, as in scan.cu
_TYPES = (*("f32",) * 6, "i32")
_FORMS = (OF_HEADS, OF_STATES)


def _fits(step: Step) -> bool:
    operands = step.operands
    return team_fits(operands["s"].ne[0]) and all(rows_ok(x) for x in operands.values())


@kernel("ssm_scan", _TYPES, forms=_FORMS, requires=_fits)
@kernel("ssm_scan", (*_TYPES, "i32"), forms=_FORMS, requires=_fits)
@kernel(
    "ssm_scan+set_rows",
    (*_TYPES, "i32", "i32", "f32"),
    forms=(*_FORMS, SCAN_ROWS),
    requires=_fits,
)
def ssm_scan(w: Work) -> Iterator[Launch]:
    n, size, n_heads, _ = w["s"].ne
    form = OF_HEADS if w["A"].ne[0] == 1 else OF_STATES
    n_teams = blocks(size, _ROWS[form]) * int(n_heads)
    yield from launch_teams(w, form, ARGS, n, n_teams, w["ids"].ne[0])
