"""The selective scan of Mamba."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.scan_teams import launch_teams, team_fits
from ggmlpy.backends.cuda.shapes import rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step

ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("y", "s", "x", "dt", "A", "B", "C", "ids")),
        ("K", "i4"),
        ("lanes", "i4"),
    ],
    align=True,
)
OF_HEADS, OF_STATES = Form("scan.cu", "scan_of_heads"), Form("scan.cu", "scan_of_states")


def _fits(step: Step) -> bool:
    operands = step.operands
    return team_fits(operands["s"].ne[0]) and all(rows_ok(x) for x in operands.values())


@kernel("ssm_scan", ("f32",) * 6 + ("i32",), forms=[OF_HEADS, OF_STATES], requires=_fits)
def ssm_scan(w: Work) -> Iterator[Launch]:
    n, size, n_heads, _ = w["s"].ne
    n_rows = int(size) * int(n_heads) * int(w["x"].ne[3])
    form = OF_HEADS if w["A"].ne[0] == 1 else OF_STATES
    yield launch_teams(form, ARGS, n, n_rows)
