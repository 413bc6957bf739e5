"""Launches of kernels whose rows are a warp's or a block's: the host's side of reduce_rows.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.kernel import Launch
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

BLOCK = 256  # threads for a long row
WARP_ROW = 512  # floats of the longest row that is a warp's
_WARPS = 4  # with a row each: few, so that a few rows use many multiprocessors


def launch_rows(
    form: Form,
    args: np.dtype[Any],
    n: int,
    n_rows: int,
    values: Mapping[str, Any] | None = None,
) -> Launch:
    """For `n_rows` rows of `n` elements, both bounds. `args` has the field rows_per_block."""
    per_block, threads = (_WARPS, 32 * _WARPS) if int(n) <= WARP_ROW else (1, BLOCK)
    filled = {**(values or {}), "rows_per_block": per_block}
    return Launch(form, args, (blocks(n_rows, per_block), 1, 1), threads, values=filled)
