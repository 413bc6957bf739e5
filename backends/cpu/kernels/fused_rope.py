"""Rope of keys fused with writing them to the cache, without rows of f32 in memory in between.

    ROPE_SET_ROWS[type]   y[:, ids[t]] = rope(x)[:, :, t] as one row of `type`     x [D, Hk, T] f32

Each number is rotated, and then rounded, as by the two separate kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import TENSOR, Inline, Int, Kernel, Record, kernel, report
from ggmlpy.backends.cpu.kernels import rope, types
from ggmlpy.backends.cpu.kernels.quantize import WRITERS
from ggmlpy.backends.cpu.kernels.rope import make_table, padded_pairs, rotate_f32
from ggmlpy.backends.cpu.kernels.rows import first_bad_id, load_id
from ggmlpy.backends.cpu.simd.arith import remainder

ARGS = np.dtype(
    [*rope.FIELDS, ("ids", TENSOR), ("row_bytes", "i8"), ("ids_type", "i4")], align=True
)


def _row_bytes(keys: Any) -> int:
    """Bytes of a row of f32, rounded up to a whole cache line."""
    return -(-4 * int(keys.ne[0] * keys.ne[1]) // 64) * 64


def _bind(node: Any, builder: Any) -> dict[str, float]:
    """`node` is the set_rows, whose rows are views of the keys."""
    keys = node.src[0].root
    return {
        **rope.bind(keys, builder),
        "row_bytes": _row_bytes(keys),
        "ids_type": types.type_field(node.src[1]),
    }


def _scratch_bytes(node: Any, n_threads: int) -> int:
    keys = node.src[0].root
    return (16 * padded_pairs(keys.op) + _row_bytes(keys)) * n_threads


def _rope_set_rows(type: str, write: Inline) -> Kernel:
    served = [
        ("rope+set_rows", ("f32", "i32", *factors, ids, type))
        for factors in ((), ("f32",))
        for ids in ("i64", "i32")
    ]

    @kernel(
        *served[0],
        args=ARGS,
        also=served[1:],
        bind=_bind,
        scratch_bytes=_scratch_bytes,
        name=f"rope_set_rows_{type}",
    )
    def rope_set_rows(p: Record, ith: Int, nth: Int) -> None:
        """Nothing is written if any index is out of range; threads own rows of y as in set_rows."""
        bad = first_bad_id(p.ids, p.ids_type, p.y.ne1)
        if bad != 0:
            report(p, load_id(bad, p.ids_type))
            return
        cos = p.scratch + (16 * p.padded + p.row_bytes) * ith
        sin = cos + 8 * p.padded
        row = sin + 8 * p.padded
        for token in range(p.x.ne2):
            id = load_id(p.ids.ptr + token * p.ids.nb0, p.ids_type)
            if nth == 1 or remainder(id, nth) == ith:
                make_table(p, token, cos, sin)
                x = p.x.ptr + token * p.x.nb2
                for head in range(p.x.ne1):
                    rotate_f32(p, x + head * p.x.nb1, row + 4 * head * p.x.ne0, cos, sin)
                write(row, p.y.ptr + id * p.y.nb1, p.x.ne0 * p.x.ne1)

    return rope_set_rows


ROPE_SET_ROWS = {type: _rope_set_rows(type, write) for type, write in WRITERS.items()}
