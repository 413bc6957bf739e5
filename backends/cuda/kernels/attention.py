"""Attention over a cache: what each query sees is planned, then attended in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Scratch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.rounding import Rounding
from ggmlpy.backends.step import Step
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16

ARGS = np.dtype(
    [
        ("y", TENSOR),
        ("q", TENSOR),
        ("k", TENSOR),
        ("v", TENSOR),
        ("mask", TENSOR),
        ("cells", TENSOR),
        ("seen", TENSOR),
        ("sinks", TENSOR),
        ("plan", SPAN),
        ("partial", SPAN),
        ("scale", "f4"),
        ("max_bias", "f4"),
        ("logit_softcap", "f4"),
        ("unit", "f4"),
        ("k_type", "i4"),
        ("v_type", "i4"),
        ("k_vectors", "i4"),
        ("v_vectors", "i4"),
        ("max_queries", "i4"),
        ("max_items", "i4"),
        ("max_slots", "i4"),
        ("task_queries", "i4"),
        ("blocks_per_item", "i4"),
        ("target_blocks", "i4"),
    ],
    align=True,
)

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
HALVED = tuple(type for type in KV_TYPES if type not in ("f32", "bf16"))  # used as f16

PLAN = Form("attention.cu", "attention_plan")
ATTEND = {slices: Form("attention.cu", f"attention_{slices}") for slices in (1, 4)}


def _mma(n: int, padded: bool, converted: bool, row_tiles: int = 1) -> Form:
    """The kernel for heads of n elements, of up to n where `padded`, which takes f16 as it lies in
    memory, or is `converted`; with so many tiles of 16 rows for each warp, and groups."""
    defines = {
        "CONVERTED": f"{converted:d}",
        "HEAD": str(n),
        "PADDED": f"{padded:d}",
        "N_GROUPS": str(row_tiles),  # in prompts
        "ROW_TILES": str(row_tiles),
    }
    return Form("attention_mma.cu", "attention_mma", tuple(defines.items()))


MMA = [
    _mma(64, False, False),
    _mma(64, False, False, 2),
    _mma(128, False, False),
    _mma(128, False, False, 2),
    _mma(128, True, False),
    _mma(256, True, False),
    _mma(128, True, True),
    _mma(256, True, True),
]

_PLANNERS, _THREADS = 256, 128
_CHUNK, _EQUAL_CELLS, _CHUNKS_A_DOUBLING = 256, 64 * 256, 32  # as in attention.cuh
_BLOCKS_A_MULTIPROCESSOR = 4  # of equal work are wanted
_GRID_A_MULTIPROCESSOR = 8  # blocks, which take items in turns: some items take longer than others
_MOST_PARTIAL_BYTES = 128 << 20  # of states of chunks; without room for them tasks are not split
# Bytes of the structs of attention.cuh.
_HEADER, _QUERY, _TASK, _ITEM, _ARRIVED, _SOFTMAX = 8, 12, 40, 12, 4, 8


def _chunk_of(cell: int) -> int:
    """The chunk that a place in a list lies in: as in attention.cuh."""
    if cell < _EQUAL_CELLS:
        return cell // _CHUNK
    doubling = (cell // _EQUAL_CELLS).bit_length() - 1
    rest = (cell >> doubling) - _EQUAL_CELLS
    in_doubling = rest // (_EQUAL_CELLS // _CHUNKS_A_DOUBLING)
    return _EQUAL_CELLS // _CHUNK + _CHUNKS_A_DOUBLING * doubling + in_doubling


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a step is cut into blocks.

    rows             of a block: heads of q that share a head of K, of one query or more
    n_columns        blocks along the columns of V
    task_queries     most queries of a task
    blocks_per_item  that take the same cells: heads of K, and blocks of the heads that share one
    target_blocks    of equal work that the plan aims at
    max_...          room for queries, items, and states of chunks of queries
    """

    rows: int
    n_columns: int
    task_queries: int
    blocks_per_item: int
    target_blocks: int
    max_queries: int
    max_items: int
    max_slots: int

    @staticmethod
    def of(
        w: Work, rows: int, columns: int, blocks_wanted: float = _BLOCKS_A_MULTIPROCESSOR
    ) -> _Cut:
        """Blocks of so many rows, and columns of V."""
        q, k, v = w["q"], w["k"], w["v"]
        n_shared, n_kv_heads = int(q.ne[2]) // int(k.ne[2]), int(k.ne[2])
        n_columns = blocks(v.ne[0], columns)
        blocks_per_item = n_kv_heads * blocks(n_shared, rows)
        target = max(1, int(blocks_wanted * w.info.n_sm))
        max_queries = int(q.ne[1]) * int(q.ne[3])
        n_cells = int(w["cells"].ne[0] if "cells" in w.step.operands else k.ne[1])
        slot_bytes = int(q.ne[2]) * (_SOFTMAX + 4 * int(v.ne[0]))
        most = max(1, _MOST_PARTIAL_BYTES // slot_bytes)
        return _Cut(
            rows,
            n_columns,
            max(1, rows // min(n_shared, rows)),
            blocks_per_item,
            target,
            max_queries,
            max_queries + blocks(target, blocks_per_item) + 1,
            min(max_queries * (_chunk_of(max(n_cells, 1) - 1) + 1), most),
        )

    def unsplit_blocks(self, w: Work) -> int:
        """Where all queries see one list."""
        n_streams = int(w["q"].ne[3])
        return (
            blocks(self.max_queries // n_streams, self.task_queries)
            * n_streams
            * self.blocks_per_item
        )

    @property
    def plan_bytes(self) -> int:
        of_query = _QUERY + _TASK + _ARRIVED * self.blocks_per_item
        return _HEADER + of_query * self.max_queries + _ITEM * self.max_items

    def partial_bytes(self, n_heads: int, dv: int) -> int:
        return self.max_slots * n_heads * (_SOFTMAX + 4 * dv)


def _plan(w: Work, cut: _Cut) -> tuple[Scratch, bool]:
    """Memory for the plan, and whether it must be made: steps with the same lists have the same."""
    seen = w.step.operands.get("seen")
    if seen is None:
        return w.scratch(cut.plan_bytes, "plan of attention"), True
    mask = w.step.operands.get("mask")
    n_masked = None if mask is None else mask.ne[0]
    kind = f"plan of attention {seen.name} {w['cells'].ne} {n_masked} {cut}"
    return w.derived(kind, seen, cut.plan_bytes)


def _has_vectors(w: Work, x: Tensor) -> bool:
    """Whether all rows of K or V are aligned to 16 bytes."""
    return all(n % 16 == 0 for n in (w.address(x), *x.nb[1:]))


def _launches(
    w: Work, attend: Form, cut: _Cut, shared_bytes: int = 0, unit: float = 1.0, groups: int = 1
) -> Iterator[Launch]:
    """Plan, attend."""
    q, k, v = w["q"], w["k"], w["v"]
    plan, missing = _plan(w, cut)
    partial = w.scratch(cut.partial_bytes(int(q.ne[2]), int(v.ne[0])), "states of attention")
    values = {
        "plan": plan,
        "partial": partial,
        "unit": unit,
        "k_type": KV_TYPES.index(k.type.name),
        "v_type": KV_TYPES.index(v.type.name),
        "k_vectors": _has_vectors(w, k),
        "v_vectors": _has_vectors(w, v),
        "max_queries": cut.max_queries,
        "max_items": cut.max_items,
        "max_slots": cut.max_slots,
        "task_queries": cut.task_queries,
        "blocks_per_item": cut.blocks_per_item,
        "target_blocks": cut.target_blocks,
    }
    if missing:
        yield Launch(PLAN, ARGS, (1, 1, 1), _PLANNERS, values=values)
    most = blocks(_GRID_A_MULTIPROCESSOR * w.info.n_sm, cut.blocks_per_item)
    grid = min(cut.max_items, most), cut.blocks_per_item, cut.n_columns
    yield Launch(attend, ARGS, grid, groups * _THREADS, shared_bytes, values)


# --- on tensor cores: f16, and what becomes f16 ---

_MMA_ROWS = 64
_MMA_MOST = 256  # elements of a head
_MMA_UNIT = 2.0**14  # of weights
# Prompts: two tiles of rows for each warp where that leaves work for most multiprocessors. A task
# is cut only where it is far longer than others: the states of its chunks, written and read, take
# as long as computing them.
_LEAST_FILLED = 0.9
_BLOCKS_OF_PROMPTS = 0.5


def _fits_mma(step: Step) -> bool:
    k, v = step.operands["k"], step.operands["v"]
    return max(k.ne[0], v.ne[0]) <= _MMA_MOST and max(k.nb[1], v.nb[1]) < 1 << 32


def _mma_shared_bytes(n: int, row_tiles: int) -> int:
    """Of `Size<n, ...>::Shared`: two tiles of K and V for each group, q, numbers of cells, what
    rows see, have been scaled by, and have so far, what warps see, the block's work."""
    n_cells, rows = 64 if n <= 128 else 32, _MMA_ROWS * row_tiles
    n_bytes = row_tiles * 2 * (2 * n_cells * 2 * n + 4 * n_cells + n_cells // 16)
    n_bytes += 2 * n * (1 if n * row_tiles <= 128 else rows)
    n_bytes += rows * (8 + 4 + 4 + 4 + 4 + 8)
    return n_bytes + 4 + 8 + 32 * row_tiles + 80 + 16 + 16


def _attention_mma(w: Work) -> Iterator[Launch]:
    d, dv = int(w["k"].ne[0]), int(w["v"].ne[0])
    plain = w["k"].type is F16 and w["v"].type is F16 and d % 8 == 0 and dv % 8 == 0
    converted = not (plain and _has_vectors(w, w["k"]) and _has_vectors(w, w["v"]))
    padded = converted or d != dv or d not in (64, 128)
    n = d if not padded else 128 if max(d, dv) <= 128 else 256
    cut, row_tiles = _Cut.of(w, _MMA_ROWS, n), 1
    if not padded and _mma_shared_bytes(n, 2) <= w.info.shared_bytes:
        many = _Cut.of(w, 2 * _MMA_ROWS, n, _BLOCKS_OF_PROMPTS)
        fills = many.unsplit_blocks(w) >= _LEAST_FILLED * w.info.n_sm
        if fills and int(w["q"].ne[1]) >= many.task_queries:  # else rows of streams that decode
            cut, row_tiles = many, 2
    form = _mma(n, padded, converted, row_tiles)
    yield from _launches(w, form, cut, _mma_shared_bytes(n, row_tiles), _MMA_UNIT, row_tiles)


# --- any types, in f32 ---


_ROWS = 8
_SLICE = 128  # columns of V


def _attention(w: Work) -> Iterator[Launch]:
    slices = 1 if int(w["v"].ne[0]) <= _SLICE else 4
    yield from _launches(w, ATTEND[slices], _Cut.of(w, _ROWS, slices * _SLICE))


def _declare(k: str, v: str) -> None:
    """The kernels for caches of these types, with all optional operands."""
    forms = [PLAN, *ATTEND.values()]
    for mask in (("f16",), ()):
        for lists in ((), ("i32", "i32")):
            for sinks in ((), ("f32",)):
                types = ("f32", k, v, *mask, *lists, *sinks)
                if k in HALVED and v in HALVED:
                    kernel(
                        "flash_attn_ext",
                        types,
                        forms=[PLAN, *MMA],
                        requires=_fits_mma,
                        rounding=Rounding.F16,
                    )(_attention_mma)
                kernel("flash_attn_ext", types, forms=forms)(_attention)


for _k in KV_TYPES:
    for _v in KV_TYPES:
        _declare(_k, _v)
