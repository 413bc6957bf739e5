"""Products with weights of all types, by few or many columns; with a bias, or as a gated unit.

Products of few columns of one x are parts of one launch (the pass `products`), and those of many
where wide blocks take all of them sooner than several launches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import MAX_GRID_YZ, Launch, Work, kernel
from ggmlpy.backends.cuda.kernels.glu import GLUS, glu_values
from ggmlpy.backends.cuda.kernels.products_rows import (
    BF16,
    F16,
    F32,
    FILE,
    INT8,
    LIST_COLUMNS,
    THREADS,
    Rounded,
    expert_lists,
    has_aligned_rows,
    is_as_stored,
    rounded_rows,
)
from ggmlpy.backends.cuda.kernels.quants import QUANTS
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import has_counts
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import F32 as F32_TYPE
from ggmlpy.graph.types import TensorType, type_of

_PARTS = ("", "_2", "_3")  # of a launch: suffixes of operands and results
ARGS = np.dtype(
    [
        *((f"{name}{part}", TENSOR) for name in ("y", "weight", "bias") for part in _PARTS),
        *((name, TENSOR) for name in ("up", "x", "ids")),
        *((name, SPAN) for name in ("rounded", "lists", "sums")),
        ("rounded_bytes", "i8"),
        ("glu", "i4"),
        *((name, "f4") for name in ("alpha", "limit")),
        *((name, "i4") for name in ("is_aligned", "n_row_blocks", "n_column_blocks")),
        *((name, "i4") for name in ("chunk", "columns", "rounds_x", "are_weights", "slice_chunks")),
        ("first_block", "i4", (len(_PARTS) - 1,)),
    ],
    align=True,
)
FINISH = Form(FILE, "finish_product")
WIDE = Form("products_wide.cu", "multiply_wide_columns")
FLOATS = ("f32", "f16", "bf16")
_ROUNDED = {"f32": F32, "f16": F16, "bf16": BF16}  # of quantised weights INT8

# As in products.cuh, products_one.cuh, products_few.cuh and products_many.cuh.
_SLICES, _WARPS, _WARP_ROWS, _COLUMNS = 8, 8, 16, 8
_FEW_STAGES = _ONE_STAGES = 2
_ONE_BLOCKS = 3  # of one column fit a multiprocessor by their registers, and take groups in turns
_AT_ONCE = 32  # columns of a warp, where there are more than 8
_FEW_EXPERTS = 16  # columns of mul_mat_id that are computed one by one
_MOST_COLUMNS = (128, 64, 32, 8)  # of a block of many: those for which there is memory
_MOST_ROUNDED_BYTES = 16 * 352  # of a slice of x that a block of few columns rounds
_STATIC_BYTES = 1280  # at most, beside what a launch asks for
# As in products_wide.cu.
_WIDE_COLUMNS, _WIDE_STAGES = 256, 2
_QUAD = 4  # neighbours in a column, for a thread of finish_product
# Predicted from the machine code for an H100: until a block has its first chunk, and sums that are
# written and read again.
_WAIT_CLOCKS, _SUMS_OF_A_CLOCK = 3000, 400
_WIDE_CLOCKS, _WIDE_SLICE_CLOCKS = 1600, 2000  # of a wide block, for a chunk and for a slice
_TILE_PITCH = _WARPS * _WARP_ROWS + 4  # of a column of sums
_WITH_OFFSET = ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K")


@dataclass(frozen=True, slots=True)
class Product:
    """What the kernels of one type of weights take.

    warp_bytes    shared memory for a chunk of 16 rows
    few_bytes     and for a chunk of one column, of few
    column_bytes  and of many
    many_stages   how many chunks a block of many columns has in shared memory
    chunk_clocks  that such a block takes for a chunk, about, and for 8 of its columns
    wide          the kernel of blocks of 256 columns, if there is one
    """

    rounded: Rounded
    one: Form
    few: Form
    many: Form
    warp_bytes: int
    few_bytes: int
    column_bytes: int
    many_stages: int
    chunk_clocks: int
    tile_clocks: int
    wide: Form | None = None

    def n_slices(self, k: int) -> int:
        return min(_SLICES, self.rounded.n_chunks(k))

    def slice_chunks(self, k: int) -> int:
        """The most chunks of a slice."""
        return blocks(self.rounded.n_chunks(k), self.n_slices(k))

    @property
    def forms(self) -> tuple[Form, ...]:
        wide = () if self.wide is None else (self.wide,)
        return self.one, self.few, self.many, *wide, self.rounded.form, LIST_COLUMNS, FINISH

    def of_one(self, k: int) -> int:
        """Shared memory of a block of one column."""
        of_x = self.slice_chunks(k) * self.rounded.n_bytes
        return _WARPS * (_ONE_STAGES * self.warp_bytes + of_x)

    def of_few(self, columns: int) -> int:
        """And of few columns."""
        n_bytes = _FEW_STAGES * (self.warp_bytes + columns * self.few_bytes)
        return max(_WARPS * n_bytes, 2 * _WARPS * _COLUMNS * _WARP_ROWS * 4)

    def of_many(self, columns: int) -> int:
        n_bytes = self.many_stages * (_WARPS * self.warp_bytes + columns * self.column_bytes)
        return max(n_bytes, columns * _TILE_PITCH * 4)

    @property
    def of_wide(self) -> int:
        """And of 256 columns: chunks, and sums of slices."""
        rows = _WARPS * _WARP_ROWS
        chunk_bytes = (rows + _WIDE_COLUMNS) * self.rounded.n_bytes
        return _WIDE_STAGES * chunk_bytes + 4 * rows * _WIDE_COLUMNS


def _product(type: TensorType) -> Product:
    defines = (("WEIGHT", type.name),)
    one, few, many = (
        Form("products.cu", f"multiply_{columns}", defines)
        for columns in ("one_column", "few_columns", "many_columns")
    )
    if not type.is_quantized:
        clocks = (400, 350) if type.name == "f32" else (400, 50)
        rounded = _ROUNDED[type.name]
        pitch = rounded.n_bytes + 16
        wide = WIDE if type.name == "f16" else None
        return Product(rounded, one, few, many, _WARP_ROWS * 144, pitch, pitch, 4, *clocks, wide)
    row_bytes = INT8.chunk // type.block_size * type.type_size
    pitch = ((row_bytes + 15 + 15) // 16 | 1) * 16
    numbers = 16 if type.name in _WITH_OFFSET else 8
    column_bytes = 256 + 32 + 4 * numbers
    clocks = 1350, 270
    return Product(INT8, one, few, many, _WARP_ROWS * pitch, INT8.n_bytes, column_bytes, 2, *clocks)


# --- launches -------------------------------------------------------------------------------------


def _launches(w: Work, product: Product) -> Iterator[Launch]:
    parts = _parts(w)
    k, up = int(parts[0].weight.ne[0]), w.step.operands.get("up")
    weights = [part.weight for part in parts] + ([] if up is None else [up])
    values: dict[str, Any] = {
        "rounded": None,
        "lists": None,
        "sums": None,
        "rounded_bytes": product.rounded.row_bytes(k),
        "glu": 0,
        "alpha": 1.0,
        "limit": 0.0,
        "is_aligned": all(_is_aligned(w, weight) for weight in weights),
        "are_weights": all(Flag.WEIGHT in weight.root.flags for weight in weights),
        "chunk": product.rounded.chunk,
        "slice_chunks": product.slice_chunks(k),
    }
    if up is not None:
        values |= glu_values(w.step)
    ids = w.step.operands.get("ids")
    n = int(w["x"].ne[1]) if ids is None else int(ids.spec.n_elements)
    limit = _shared_bytes(w)
    is_one = n == 1 or (ids is not None and n <= _FEW_EXPERTS)
    is_one = is_one and product.of_one(k) <= limit
    is_few = ids is None and n <= _COLUMNS and product.of_few(n) <= limit
    values["rounds_x"] = is_one and _rounds_itself(w, product, parts)
    if not values["rounds_x"] and not is_as_stored(w, product.rounded):
        values["rounded"], launches = rounded_rows(w, product.rounded)
        yield from launches
    if is_one:
        yield _one(w, product, parts, n, values | _tensors(parts))
    elif is_few:
        yield _few(w, product, parts, n, values | _tensors(parts))
    else:
        yield from _many_of(w, product, parts, n, values)


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the products of a launch."""

    y: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def n_row_blocks(self) -> int:
        return blocks(self.weight.ne[1], _WARP_ROWS)


def _parts(w: Work) -> list[_Part]:
    step, first = w.step, "gate" if "gate" in w.step.operands else "weight"
    return [
        _Part(step.results[f"y{i}"], step.operands[f"{first}{i}"], step.operands.get(f"bias{i}"))
        for i in _PARTS
        if f"y{i}" in step.results
    ]


def _tensors(parts: Sequence[_Part]) -> dict[str, Any]:
    """The fields of parts; those that are not there are absent, and behind all blocks."""
    found: dict[str, Any] = {}
    for i, part in enumerate(_PARTS):
        of = parts[i] if i < len(parts) else None
        for name in ("y", "weight", "bias"):
            found[f"{name}{part}"] = of and getattr(of, name)
    ends = list(itertools.accumulate(part.n_row_blocks for part in parts))
    found["first_block"] = [*ends[:-1], *[ends[-1]] * (len(_PARTS) - len(parts))]
    return found


def _shared_bytes(w: Work) -> int:
    """What a launch may ask for."""
    return w.info.shared_bytes - _STATIC_BYTES


def _rounds_itself(w: Work, product: Product, parts: Sequence[_Part]) -> bool:
    """Whether blocks of one column round x: if they are not too many, nor x too long."""
    x = w["x"]
    is_short = product.slice_chunks(int(x.ne[0])) * product.rounded.n_bytes <= _MOST_ROUNDED_BYTES
    is_f32 = x.type is F32_TYPE and has_aligned_rows(w, x)
    return is_f32 and is_short


def _is_aligned(w: Work, weight: Tensor) -> bool:
    # Of quantised types 16 bytes are copied wherever there is one of a row.
    more = [weight.spec.n_bytes] if weight.type.is_quantized else weight.nb[1:]
    return all(at % 16 == 0 for at in (w.address(weight), *more))


def _n_matrices(w: Work) -> int:
    return int(w["x"].ne[2]) * int(w["x"].ne[3])


def _one(
    w: Work, product: Product, parts: Sequence[_Part], n: int, values: dict[str, Any]
) -> Launch:
    n_matrices = n if "ids" in w.step.operands else _n_matrices(w)
    n_groups = sum(part.n_row_blocks for part in parts)
    most = blocks(_ONE_BLOCKS * w.info.n_sm, n_matrices)
    n_layers = blocks(n_matrices, MAX_GRID_YZ)
    grid = min(n_groups, most), blocks(n_matrices, n_layers), n_layers
    values |= {"n_row_blocks": n_groups, "n_column_blocks": 1, "columns": 1}
    shared = product.of_one(int(w["x"].ne[0]))
    return Launch(product.one, ARGS, grid, 32 * _WARPS, shared, values)


def _few(
    w: Work, product: Product, parts: Sequence[_Part], n: int, values: dict[str, Any]
) -> Launch:
    n_row_blocks, n_matrices = sum(part.n_row_blocks for part in parts), _n_matrices(w)
    n_layers = blocks(n_matrices, MAX_GRID_YZ)
    grid = n_row_blocks, blocks(n_matrices, n_layers), n_layers
    values |= {"n_row_blocks": n_row_blocks, "n_column_blocks": 1, "columns": n}
    return Launch(product.few, ARGS, grid, 32 * _WARPS, product.of_few(n), values)


def _many_of(
    w: Work, product: Product, parts: Sequence[_Part], n: int, values: dict[str, Any]
) -> Iterator[Launch]:
    """All parts in one launch, or a launch for each."""
    tilings = [_best_tiling(w, product, part, n) for part in parts]
    if len(parts) > 1 and all(_fits_wide(w, product, part) for part in parts):
        tiling = _wide_tiling(w, product, parts, n)
        if tiling.clocks < sum(apart.clocks for apart in tilings):
            ends = list(itertools.accumulate(_row_blocks(w, part) for part in parts))
            first = [*ends[:-1], *[ends[-1]] * (len(_PARTS) - len(parts))]
            values |= _tensors(parts) | {"first_block": first}
            yield from _many(w, product, parts[0], tiling, values)
            return
    for part, tiling in zip(parts, tilings, strict=True):
        yield from _many(w, product, part, tiling, values | _tensors([part]))


def _many(
    w: Work, product: Product, part: _Part, tiling: Tiling, values: dict[str, Any]
) -> Iterator[Launch]:
    if "ids" in w.step.operands:
        values["lists"], launches = expert_lists(w, int(part.weight.ne[2]))
        yield from launches
    values |= {
        "n_row_blocks": tiling.n_row_blocks,
        "n_column_blocks": tiling.n_column_blocks,
        "columns": tiling.columns,
    }
    if tiling.n_slices > 1:
        values["sums"] = w.scratch(4 * tiling.n_sums, "sums of slices")
    form, shared = product.many, product.of_many(tiling.columns)
    if tiling.is_wide and product.wide is not None:
        form, shared = product.wide, product.of_wide
    grid = tiling.n_blocks, tiling.n_slices, 1
    yield Launch(form, ARGS, grid, 32 * _WARPS, shared, values)
    if tiling.n_slices > 1:
        y = part.y
        grid = blocks(blocks(y.ne[0], _QUAD) * int(y.spec.n_rows), THREADS), 1, 1
        yield Launch(FINISH, ARGS, grid, THREADS, values=values)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How blocks of many columns share a product.

    columns  of a block
    n_sums   of slices, which finish_product adds
    clocks   that it takes, about
    """

    columns: int
    n_row_blocks: int
    n_column_blocks: int
    n_blocks: int
    n_slices: int
    n_sums: int
    clocks: float
    is_wide: bool = False


def _best_tiling(w: Work, product: Product, part: _Part, n: int) -> Tiling:
    return min(_tilings(w, product, part, n), key=lambda tiling: tiling.clocks)


def _tilings(w: Work, product: Product, part: _Part, n: int) -> Iterator[Tiling]:
    """Those for which there is memory: by all columns at once weights are unpacked once, by fewer
    or by slices more multiprocessors have work."""
    weight, y = part.weight, part.y
    is_gated, n_chunks = "up" in w.step.operands, product.rounded.n_chunks(weight.ne[0])
    n_row_blocks = _row_blocks(w, part)
    n_expected, n_lists, n_matrices = n, 0, _n_matrices(w)
    if "ids" in w.step.operands:  # of an expert, seldom more than twice their number on average
        n_expected, n_lists = min(n, 2 * blocks(n, weight.ne[2])), min(n, int(weight.ne[2]))
        n_matrices = 1
    for most in _MOST_COLUMNS:
        columns = min(most, _whole(n_expected))
        if product.of_many(columns) > _shared_bytes(w):
            continue
        n_column_blocks = n_lists + n // columns if n_lists else blocks(n, columns)
        n_blocks = n_row_blocks * n_column_blocks * n_matrices
        for n_slices in {1, product.n_slices(weight.ne[0])}:
            n_sums = n_slices * blocks(y.ne[0], _QUAD) * _QUAD * int(y.spec.n_rows)
            n_sums *= 2 if is_gated else 1
            of_chunk = product.chunk_clocks + product.tile_clocks * columns // _COLUMNS
            of_block = _WAIT_CLOCKS + blocks(n_chunks, n_slices) * of_chunk
            clocks = blocks(n_blocks * n_slices, w.info.n_sm) * of_block
            if n_slices > 1:
                clocks += _WAIT_CLOCKS + n_sums // _SUMS_OF_A_CLOCK
            yield Tiling(columns, n_row_blocks, n_column_blocks, n_blocks, n_slices, n_sums, clocks)
    if not n_lists and _fits_wide(w, product, part):
        yield _wide_tiling(w, product, [part], n)


def _wide_tiling(w: Work, product: Product, parts: Sequence[_Part], n: int) -> Tiling:
    """All parts by blocks of 256 columns."""
    k = parts[0].weight.ne[0]
    n_row_blocks = sum(_row_blocks(w, part) for part in parts)
    n_column_blocks = blocks(n, _WIDE_COLUMNS)
    n_blocks = n_row_blocks * n_column_blocks * _n_matrices(w)
    of_block = _WAIT_CLOCKS + product.rounded.n_chunks(k) * _WIDE_CLOCKS
    of_block += product.n_slices(k) * _WIDE_SLICE_CLOCKS
    clocks = blocks(n_blocks, w.info.n_sm) * of_block
    return Tiling(
        _WIDE_COLUMNS, n_row_blocks, n_column_blocks, n_blocks, 1, 0, clocks, is_wide=True
    )


def _row_blocks(w: Work, part: _Part) -> int:
    """Blocks of 128 rows; of a gated unit 64 of both weights."""
    groups = _WARPS // 2 if "up" in w.step.operands else _WARPS
    return blocks(part.weight.ne[1], groups * _WARP_ROWS)


def _fits_wide(w: Work, product: Product, part: _Part) -> bool:
    """Whether rows are a whole number of chunks that are copied by 16 bytes, and blocks fit."""
    weights = [part.weight, *([w["up"]] if "up" in w.step.operands else [])]
    k, stride = part.weight.ne[0], int(w["x"].nb[1])
    is_whole = not has_counts((k,)) and int(k) % product.rounded.chunk == 0
    has_room = product.of_wide <= w.info.shared_bytes and stride < 1 << 32
    is_aligned = all(_is_aligned(w, weight) for weight in weights)
    return product.wide is not None and is_whole and has_room and is_aligned


def _whole(n: int) -> int:
    """Columns of a block that has all of n."""
    return _COLUMNS if n <= _COLUMNS else blocks(n, _AT_ONCE) * _AT_ONCE


# --- steps ----------------------------------------------------------------------------------------


def _weights_alike(step: Step) -> bool:
    """Whether both weights of a gated unit have the same strides."""
    return step.operands["gate"].nb == step.operands["up"].nb


def _declare(weight: str) -> None:
    product = _product(type_of(weight))
    rounding = product.rounded.rounding

    def launcher(w: Work) -> Iterator[Launch]:
        yield from _launches(w, product)

    for n in range(2, len(_PARTS) + 1):  # of one x
        for op, biases in (("mul_mat", 0), ("mul_mat+add", n)):
            types = (*[weight] * n, "f32", *["f32"] * biases)
            name = "+".join([op] * n)
            kernel(name, types, forms=product.forms, rounding=rounding)(launcher)
    for x in FLOATS:
        for op, types in (
            ("mul_mat", (weight, x)),
            ("mul_mat_id", (weight, x, "i32")),
            ("mul_mat+add", (weight, x, "f32")),
            ("mul_mat_id+add", (weight, x, "i32", "f32")),
        ):
            kernel(op, types, forms=product.forms, rounding=rounding)(launcher)
        for glu in GLUS:
            for op, types in (
                (f"mul_mat+mul_mat+{glu}", (weight, weight, x)),
                (f"mul_mat_id+mul_mat_id+{glu}", (weight, weight, x, "i32")),
            ):
                kernel(op, types, forms=product.forms, requires=_weights_alike, rounding=rounding)(
                    launcher
                )


for _weight in (*FLOATS, *QUANTS):
    _declare(_weight)
