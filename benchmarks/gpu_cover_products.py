"""What the loops of the kernels of products cover, by the sizes of a launch.

multiply_one_column     blocks take groups of 16 rows in turns, by a loop inside which each warp
                        takes chunks of a slice of K; the loop before it rounds or copies x.
                        Slices are added by one warp of a block.
multiply_few_columns    warps have 16 rows and a slice of K, and take it by chunks. The loop
                        with the mma covers 16 rows, 8 columns, and as many elements of K as it
                        has multiplications for: a chunk, or a part of one.
multiply_many_columns   warps have 16 rows and all columns of the block, or of floats 32 rows and
                        half of the columns; and all of K, or a slice of it. The loop with the
                        mma covers 16 times 16 rows x 8 columns; with fewer columns it ends
                        early, and what it executes lies between that of the other kernel (once)
                        and all of it. Copies for the first stages and for later ones, and of as
                        many columns as a block can have, are in the way that is counted: 5 to
                        10 % too much with 128 columns.
multiply_wide_columns   the same with 64 rows and 64 columns for each warp, and all of K; the loop
                        over chunks is the one with the mma. Blocks with fewer columns are counted
                        as whole ones.

x of bf16 weights is two numbers for each element, both of which are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from benchmarks.gpu_executed import (
    Cells,
    Code,
    Covered,
    Executed,
    accessed,
    is_there,
    n_blocks,
    n_warps,
    ne,
    number,
    path_to_macs,
    same_loop,
)
from benchmarks.gpu_limits import DRAM_S, H100, Demand, by_itself_s, warp_s
from benchmarks.sass import Loop
from benchmarks.sass_mix import Mix
from ggmlpy.backends.cuda.builder import Prepared
from ggmlpy.graph.types import type_of

# As in products*.cuh; tests compare them.
WARP_ROWS, COLUMNS, WARPS, SLICES, MANY_TILES, TILES_AT_ONCE = 16, 8, 8, 8, 16, 4
PARTS = ("weight", "weight_2", "weight_3")
FLOAT_GROUPS, INT8_GROUPS = 2, 1  # of 16 rows that a warp multiplies, by many columns
# Chunks in shared memory: one is multiplied, and the others have been asked for.
ONE_STAGES, FEW_STAGES, FLOAT_STAGES, INT8_STAGES, WIDE_STAGES = 2, 2, 4, 2, 2
WIDE_COLUMNS, WIDE_GROUPS, WIDE_TILES = 256, 4, 8  # of a block; of 16 rows and 8 columns of a warp


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of a kernel of products: around the one with the mma, and that one.

    of_k    elements of K that an iteration of it covers
    """

    body: Loop
    chunks: Loop | None  # the loop over chunks, if another one is inside
    macs: Loop
    of_k: int

    @staticmethod
    def of(body: Loop, tiles: int, chunk: int, name: str) -> _Nest:
        """Of a kernel that multiplies so many tiles for every element of K."""
        *around, macs = path_to_macs(body, name)
        found = macs.mix.tensor_macs("H") + macs.mix.tensor_macs("I")
        of_k, rest = divmod(found, tiles * WARP_ROWS * COLUMNS)
        if rest or of_k % 16 or chunk % of_k or len(around) not in (1, 2):
            raise ValueError(
                f"{name}: an iteration has {found} multiplications, {tiles} tiles of {WARP_ROWS}"
                f" x {COLUMNS} are expected: the table of gpu_covers.py is of another kernel"
            )
        return _Nest(body, around[1] if len(around) == 2 else None, macs, of_k)

    @property
    def hot(self) -> Loop:
        """The outermost loop."""
        return self.chunks or self.macs


def n_rows(launch: Prepared) -> int:
    """Of the weights of all products that are parts of the launch."""
    return sum(ne(launch, name)[1] for name in PARTS if is_there(launch, name))


def _chunk_bytes(launch: Prepared) -> int:
    """Of a chunk of x, as it is multiplied."""
    n_chunks = ceil(ne(launch, "weight")[0] / number(launch, "chunk"))
    return number(launch, "rounded_bytes") // n_chunks


def _parts_of_x(launch: Prepared) -> int:
    """How many numbers an element of x is, each of which is multiplied: two for bf16."""
    type = type_of(dict(launch.form.defines)["WEIGHT"])
    if type.is_quantized:
        return 1
    return _chunk_bytes(launch) // (number(launch, "chunk") * type.type_size)


def _count_loops(
    executed: Executed, launch: Prepared, weight: str, nest: _Nest, columns: int, lanes: int,
    per_warp: float,
) -> None:  # fmt: skip
    """The body and its loops but those behind the outermost: of copies, over chunks."""
    warps, chunk = n_warps(launch), number(launch, "chunk")
    needed = _copies(launch, weight, columns, lanes)
    executed.add(nest.body.mix, warps)
    first = [loop for loop in nest.body.inner if loop.address < nest.hot.address]
    _count_copies(executed, first, needed, warps)
    if nest.chunks is not None:
        executed.add(nest.chunks.mix, warps * per_warp)
        copies = [loop for loop in nest.chunks.inner if loop.address < nest.macs.address]
        _count_copies(executed, copies, needed, warps * per_warp)
    _count_copies(executed, nest.macs.inner, needed, warps * per_warp * chunk / nest.of_k)


def _copies(launch: Prepared, weight: str, columns: int, lanes: int) -> list[int]:
    """Copies by a lane for a chunk, by the loops that make them: for floats two of rows, 16 bytes
    each, and x; for quantised types the codes of x and its scales, 4 bytes each. Those that have no
    loop are in what is around, and so is the rest of loops that are unrolled.
    """
    type = type_of(weight)
    if type.is_quantized:
        return [columns * 16 // lanes, columns * (16 if weight in _WITH_OFFSET else 8) // lanes]
    of_rows = number(launch, "chunk") * type.type_size // type.block_size // 64
    return [of_rows, of_rows, columns * (_chunk_bytes(launch) // 16) // lanes]


_WITH_OFFSET = {"q4_1", "q5_1", "q2_K", "q4_K", "q5_K"}


def _count_copies(
    executed: Executed, loops: Sequence[Loop], needed: Sequence[int], times: float
) -> None:
    found = [loop for loop in loops if loop.mix.of("LDGSTS")]
    for loop, n in zip(found, needed, strict=False):
        executed.add(loop.mix, times * (n // loop.mix.of("LDGSTS")))


def chunk_wait_s(of_chunk: Executed, warps: int, ahead: int) -> float:
    """What a block by itself waits for a chunk, which it asked for before it multiplied `ahead`
    others: with more of them under way, each takes a part of the time that memory needs for one.

    of_chunk    what a warp executes for one
    """
    clocks = {pipe: warps * n for pipe, n in of_chunk.clocks().items()}
    f16_flops, int8_ops = (2 * warps * of_chunk.macs(kind) for kind in "HI")
    by_itself = by_itself_s(H100, clocks, f16_flops, int8_ops)
    return max(0.0, DRAM_S / ahead - max(warp_s(H100, of_chunk.n), by_itself))


def _product(
    launch: Prepared, executed: Executed, nest: _Nest, of_macs: Mix, per_warp: float, *,
    n_bytes: float, loaded_bytes: float, tiles: int, ahead: int,
) -> Covered:  # fmt: skip
    k, m = ne(launch, "weight")[0], n_rows(launch)
    times = number(launch, "chunk") / nest.of_k
    of_chunk = Executed()
    of_chunk.add(of_macs, times)
    if nest.chunks is not None:
        of_chunk.add(nest.chunks.mix, 1)
    wait_s = chunk_wait_s(of_chunk, launch.threads // 32, ahead)
    demand = Demand(
        n_bytes,
        loaded_bytes,
        executed.clocks(),
        f16_flops=2 * executed.macs("H"),
        int8_ops=2 * executed.macs("I"),
        warp_instructions=executed.n / n_warps(launch),
        wait_s=2 * DRAM_S + (per_warp - 1) * wait_s,
        n_blocks=n_blocks(launch),
    )
    covers = f"{WARP_ROWS} rows x {tiles * COLUMNS} columns x {nest.of_k}"
    elements = float(m * k * (1 + is_there(launch, "up")))
    return Covered(demand, executed.n, elements, of_macs.n, covers)


def one_column(launch: Prepared, code: Code, cells: Cells) -> Covered:
    k, m, chunk = ne(launch, "weight")[0], n_rows(launch), number(launch, "chunk")
    n_weights = 1 + is_there(launch, "up")
    rounds_x = number(launch, "rounds_x")
    n_columns = n_blocks(launch) // launch.grid[0]
    body, ending = code.body("usual" if n_columns > 1 else "single"), code.body("ending")
    if len(ending.inner) != 2 or not ending.inner[-1].inner[0].mix.of("LDGSTS"):
        raise ValueError(f"{launch.form}: the table of gpu_covers.py is of another kernel")
    for_x, groups = (ending if rounds_x else body).inner[0], body.inner[-1]
    hot = groups.inner[0]
    n_chunks = ceil(k / chunk)
    n_slices = min(SLICES, n_chunks)
    turns = number(launch, "n_row_blocks") / launch.grid[0]  # groups of a block
    per_turn = n_chunks / n_slices * n_weights  # chunks of a warp
    warps = n_warps(launch)
    executed = Executed()
    executed.add(body.mix, warps)
    executed.add(for_x.mix, warps * n_chunks / WARPS)
    executed.add(groups.mix, warps * turns)
    executed.add(hot.mix, warps * turns * per_turn * n_slices / WARPS)
    of_sums = ending.inner[-1]
    executed.add(Mix(of_sums.mix - groups.mix), warps * turns / WARPS)
    for loop in of_sums.inner[1:]:  # of one weight and of both, by four slices and by one
        executed.add(loop.mix, warps * turns * n_weights / WARPS)
    of_chunk = Executed()
    of_chunk.add(hot.mix, 1)
    wait_s = chunk_wait_s(of_chunk, launch.threads // 32, ONE_STAGES - 1)
    of_x = n_columns * (4 * k if rounds_x else number(launch, "rounded_bytes"))
    weights = accessed(launch, "weight") + accessed(launch, "up")
    demand = Demand(
        weights + of_x + accessed(launch, "y"),
        weights + of_x * launch.grid[0],
        executed.clocks(),
        f16_flops=2 * executed.macs("H"),
        warp_instructions=executed.n / warps,
        wait_s=DRAM_S + (turns * per_turn - 1) * wait_s,
        n_blocks=n_blocks(launch),
    )
    elements = float(m * k * n_weights)
    return Covered(demand, executed.n, elements, hot.mix.n, f"{WARP_ROWS} rows x {chunk}")


def few_columns(launch: Prepared, code: Code, cells: Cells) -> Covered:
    weight = dict(launch.form.defines)["WEIGHT"]
    k, m = ne(launch, "weight")[0], n_rows(launch)
    columns, chunk = number(launch, "columns"), number(launch, "chunk")
    n_weights = 1 + is_there(launch, "up")
    nest = _Nest.of(code.body("ending"), _parts_of_x(launch), chunk, str(launch.form))
    n_chunks = ceil(k / chunk)
    per_warp = n_chunks / min(SLICES, n_chunks) * n_weights
    warps = n_warps(launch)
    executed = Executed()
    _count_loops(executed, launch, weight, nest, columns, 32, per_warp)
    executed.add(nest.macs.mix, warps * per_warp * chunk / nest.of_k)
    behind = [loop for loop in nest.body.inner if loop.address > nest.hot.address]
    for loop in behind:  # sums of slices, whole and unrolled, of one weight and of both
        executed.add(loop.mix, warps * n_weights / 4)
    of_x_rows = columns * number(launch, "rounded_bytes")
    weights = accessed(launch, "weight") + accessed(launch, "up")
    return _product(
        launch, executed, nest, nest.macs.mix, per_warp,
        n_bytes=weights + of_x_rows + accessed(launch, "y"),
        loaded_bytes=weights + of_x_rows * ceil(m / WARP_ROWS),  # once for both weights
        tiles=1,
        ahead=FEW_STAGES - 1,
    )  # fmt: skip


def between(one: Mix, all: Mix, tiles: int) -> Mix:
    """What is executed of a loop that is unrolled for all tiles and ends early."""
    share = (tiles - 1) / (MANY_TILES - 1)
    return Mix({o: round(one[o] + (all[o] - one[o]) * share) for o in all.keys() | one.keys()})


def tiles_of_parts(tiles: int, groups: int) -> list[int]:
    """Products of 16 rows and a tile that warps have, which share a block's rows by groups of 16
    and its columns by as many parts: of each part that has any."""
    in_part = MANY_TILES // groups
    found = [groups * min(in_part, tiles - first) for first in range(0, MANY_TILES, in_part)]
    return [n for n in found if n > 0]


def _count_results(
    executed: Executed, launch: Prepared, code: Code, nest: _Nest, columns: int, taste: str
) -> None:
    """Results of a block: a warp has every eighth column, of which a lane has some rows."""
    is_gated = is_there(launch, "up")
    rows = WARP_ROWS * WARPS // (2 if is_gated else 1)
    body = code.body("gated" if is_gated else taste)
    of_columns = [loop for loop in body.inner if loop.address > nest.hot.address]
    if len(of_columns) != 1 or len(of_columns[0].inner) != 1:
        raise ValueError(f"{launch.form}: the table of gpu_covers.py is of another kernel")
    n = n_warps(launch) * columns / WARPS
    executed.add(of_columns[0].mix, n)
    executed.add(of_columns[0].inner[0].mix, n * rows / 32)


def wide_columns(launch: Prepared, code: Code, cells: Cells) -> Covered:
    k, n, chunk = ne(launch, "weight")[0], ne(launch, "y")[1], number(launch, "chunk")
    nest = _Nest.of(code.body(), WIDE_GROUPS * WIDE_TILES, chunk, str(launch.form))
    if nest.of_k != chunk:
        raise ValueError(f"{launch.form}: the table of gpu_covers.py is of another kernel")
    warps, n_chunks = n_warps(launch), k // chunk
    executed = Executed()
    executed.add(nest.body.mix, warps)
    executed.add(nest.macs.mix, warps * n_chunks)
    slices = min(SLICES, n_chunks)
    ending = same_loop(code.body("ending"), nest.hot).mix - nest.hot.mix
    executed.add(Mix(ending), warps * slices)
    # One way serves results of all kinds.
    _count_results(executed, launch, code, nest, min(n, WIDE_COLUMNS), "gated")
    weights = accessed(launch, "weight") + accessed(launch, "up")
    of_x_rows = n * number(launch, "rounded_bytes")
    return _product(
        launch, executed, nest, nest.macs.mix, n_chunks,
        n_bytes=weights + of_x_rows + accessed(launch, "y"),
        loaded_bytes=weights * ceil(n / WIDE_COLUMNS) + of_x_rows * number(launch, "n_row_blocks"),
        tiles=WIDE_COLUMNS // COLUMNS,
        ahead=WIDE_STAGES - 1,
    )  # fmt: skip


def many_columns(launch: Prepared, code: Code, cells: Cells) -> Covered:
    weight = dict(launch.form.defines)["WEIGHT"]
    k = ne(launch, "weight")[0]
    n = ne(launch, "y")[1]
    columns, chunk = number(launch, "columns"), number(launch, "chunk")
    of_x = _parts_of_x(launch)
    nest = _Nest.of(code.body(), MANY_TILES * of_x, chunk, str(launch.form))
    few_body = code.body(name="multiply_few_columns")
    few = _Nest.of(few_body, of_x, chunk, "multiply_few_columns")
    one = Mix({o: ceil(count * nest.of_k / few.of_k) for o, count in few.macs.mix.items()})
    n_used = min(n, columns)
    tiles = ceil(n_used / COLUMNS)
    tiles = tiles if tiles == 1 else ceil(tiles / TILES_AT_ONCE) * TILES_AT_ONCE
    groups = INT8_GROUPS if type_of(weight).is_quantized else FLOAT_GROUPS
    parts = [between(one, nest.macs.mix, n) for n in tiles_of_parts(tiles, groups)]
    of_macs = parts[0]  # of the busiest warps
    warps = n_warps(launch)
    per_warp = ceil(k / chunk) / launch.grid[1]
    executed = Executed()
    _count_loops(executed, launch, weight, nest, n_used, 32 * WARPS, per_warp)
    for part in parts:
        executed.add(part, warps / groups * per_warp * chunk / nest.of_k)
    ending = same_loop(code.body("ending"), nest.hot).mix - nest.hot.mix
    executed.add(Mix(ending), warps * SLICES / launch.grid[1])
    _count_results(executed, launch, code, nest, n_used, "usual")
    weights = accessed(launch, "weight") + accessed(launch, "up")
    of_x_rows = n * number(launch, "rounded_bytes")
    written = accessed(launch, "sums") or accessed(launch, "y")
    return _product(
        launch, executed, nest, of_macs, per_warp,
        n_bytes=weights + of_x_rows + written,
        loaded_bytes=weights * ceil(n / columns) + of_x_rows * number(launch, "n_row_blocks"),
        tiles=tiles,
        ahead=(INT8_STAGES if type_of(weight).is_quantized else FLOAT_STAGES) - 1,
    )  # fmt: skip
