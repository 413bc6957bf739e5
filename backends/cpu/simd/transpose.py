"""16 vectors of 16 numbers with rows and lanes exchanged."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Emitter, i64


def transposed(b: Emitter, rows: list[Any]) -> list[Any]:
    """Vector j: lane j of each of 16 vectors of 16 numbers of 32 bits.

    In squares of 2, 4, 8, 16."""
    rows = list(rows)
    for step in (1, 2, 4, 8):
        upper = [i if i & step == 0 else i - step + 16 for i in range(16)]
        lower = [i + step if i & step == 0 else i + 16 for i in range(16)]
        for r in range(16):
            if r & step == 0:
                a, c = rows[r], rows[r + step]
                rows[r], rows[r + step] = b.shuffle(a, c, upper), b.shuffle(a, c, lower)
    return rows


def row_addresses(b: Emitter, ptr: Any, row_bytes: Any, n_rows: Any) -> list[Any]:
    """The addresses of 16 rows: the last one of `n_rows`, where that is past them."""
    last = b.sub(n_rows, ir.Constant(i64.ir, 1))
    rows = [ir.Constant(i64.ir, r) for r in range(16)]
    rows = [b.select(b.icmp_signed("<", r, last), r, last) for r in rows]
    return [b.add(ptr, b.mul(row, row_bytes)) for row in rows]
