"""What the loops of the kernels of attention cover: cells are cut into items as on the device.

attention_mma       a turn covers 64 cells (32 of heads of 256), of 16 or 32 rows a warp. Warps
                    without rows only copy. No mask and no soft cap are counted. Of the last tiles
                    of a task of a prompt, a query sees a part. Groups of 4 warps take chunks in
                    turns, and wait while others fold theirs.
                    The block that is last to store states of a task folds them: an iteration has 8
                    chunks of a row and 128 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from benchmarks.gpu_executed import (
    Cells,
    Code,
    Covered,
    Executed,
    accessed,
    ne,
    number,
    path_to_macs,
    same_loop,
)
from benchmarks.gpu_limits import DRAM_S, H100, L2_S, Demand, warp_s
from benchmarks.sass import Loop
from benchmarks.sass_mix import Mix
from ggmlpy.backends.cuda.builder import Prepared

# As in attention*.cu; tests compare them.
CHUNKS_AHEAD, COLUMNS_AT_ONCE = 8, 4  # of the block that combines a task
WARPS, TILE_ROWS = 4, 16
COST_CELLS, LEAST_COST = 64, 4
CHUNK, EQUAL_CHUNKS, CHUNKS_A_DOUBLING = 256, 64, 32
STAGES = 2  # of a turn: cells are found and copied before they are computed


@dataclass(frozen=True, slots=True)
class Item:
    """What one block of attention takes for some heads: chunks of a task, with their cells."""

    task: int
    n_queries: int
    n_cells: int
    n_chunks: int
    is_split: bool


def chunk_begin(chunk: int) -> int:
    """As in attention.cuh: 64 chunks of 256 cells, then 32 for each doubling."""
    if chunk <= EQUAL_CHUNKS:
        return chunk * CHUNK
    doubling, rest = divmod(chunk - EQUAL_CHUNKS, CHUNKS_A_DOUBLING)
    equal_cells = EQUAL_CHUNKS * CHUNK
    return (equal_cells + rest * (equal_cells // CHUNKS_A_DOUBLING)) << doubling


def planned_items(
    cells: Cells, task_queries: int, blocks_per_item: int, target_blocks: int, max_slots: int
) -> list[Item]:
    """As attention_plan cuts tasks, for queries that see all cells before them and their own. Tasks
    for whose states there is no room are not cut.
    """
    tasks = []
    for first in range(0, cells.n_queries, task_queries):
        n = min(task_queries, cells.n_queries - first)
        tasks += [(n, cells.depth + first + n)] * cells.n_seqs
    work = sum(ceil(end / COST_CELLS) for _, end in tasks)
    share = max(LEAST_COST, ceil(work * blocks_per_item / target_blocks))
    items = []
    n_slots = 0
    for task, (n, end) in enumerate(tasks):
        n_chunks = next(c for c in range(1, 1 << 20) if chunk_begin(c) >= end)
        is_split = n_chunks > 1 and ceil(end / COST_CELLS) > share
        n_slots += n * n_chunks if is_split else 0
        if not is_split or n_slots > max_slots:
            items.append(Item(task, n, end, n_chunks, False))
            continue
        chunk = 0
        while chunk_begin(chunk) < end:
            begin = chunk_begin(chunk)
            stop = chunk + 1
            while chunk_begin(stop) < end and (chunk_begin(stop) - begin) // COST_CELLS < share:
                stop += 1
            items.append(Item(task, n, min(end, chunk_begin(stop)) - begin, stop - chunk, True))
            chunk = stop
    return items


def _items(launch: Prepared, cells: Cells) -> list[Item]:
    names = ("task_queries", "blocks_per_item", "target_blocks", "max_slots")
    return planned_items(cells, *(number(launch, name) for name in names))


def _kv_bytes(launch: Prepared, cells: Cells) -> float:
    """Of all cells that a run sees, once."""
    n = cells.n_seqs * (cells.depth + cells.n_queries)
    heads = ne(launch, "k")[2]
    types = [launch.node.src[i].type for i in (1, 2)]
    sizes = [t.row_bytes(ne(launch, x)[0]) for t, x in zip(types, "kv", strict=True)]
    return float(n * heads * sum(sizes))


def _state_bytes(launch: Prepared, items: Sequence[Item]) -> float:
    """Of the states of chunks that are combined later."""
    n = sum(item.n_queries * item.n_chunks for item in items if item.is_split)
    return float(n * ne(launch, "q")[2] * 4 * (2 + ne(launch, "v")[0]))


def _rows(launch: Prepared) -> int:
    """Of a block."""
    return WARPS * TILE_ROWS * int(dict(launch.form.defines)["ROW_TILES"])


@dataclass(frozen=True, slots=True)
class _Turns:
    """The loop that takes tiles of cells, by what is done in it, and what is around it."""

    around: Sequence[Loop]
    busy: Loop
    idle: Loop  # of warps without rows
    parts: Mix  # of tiles of which rows see a part, besides
    ending: Mix  # of a chunk, besides

    @staticmethod
    def of(code: Code, name: str) -> _Turns:
        *around, busy = path_to_macs(code.body(), name)
        parts = same_loop(code.body("parts"), busy).mix - busy.mix
        ending = same_loop(code.body("ending"), busy).mix - busy.mix
        return _Turns(around, busy, same_loop(code.body("idle"), busy), Mix(parts), Mix(ending))


def attend(launch: Prepared, code: Code, cells: Cells) -> Covered:
    items = _items(launch, cells)
    turns = _Turns.of(code, str(launch.form))
    n_heads = ne(launch, "q")[2] // ne(launch, "k")[2]
    n_cells = 32 if ne(launch, "k")[0] > 128 else 64
    blocks = number(launch, "blocks_per_item") * launch.grid[2]
    warps, rows = launch.threads // 32, _rows(launch)
    groups = warps // WARPS
    executed = Executed()
    of_item: dict[Item, float] = {}
    for item, n in _counted(items):
        busy = min(WARPS, ceil(item.n_queries * min(n_heads, rows) / (rows // WARPS)))
        tiles = ceil(item.n_cells / n_cells)
        parts = min(tiles, ceil(item.n_queries / n_cells)) if item.n_queries > 1 else 0
        for loop in turns.around:
            executed.add(loop.mix, n * blocks * warps)
        executed.add(turns.busy.mix, n * blocks * busy * tiles)
        executed.add(turns.idle.mix, n * blocks * ((WARPS - busy) * tiles + STAGES * warps))
        executed.add(turns.parts, n * blocks * busy * parts)
        executed.add(turns.ending, n * blocks * busy * item.n_chunks)
        of_copies = 0
        for loop in turns.busy.inner:
            needed = 2 * ceil(n_cells * ne(launch, "k")[0] / 8 / (32 * WARPS))  # of K and of V
            times = needed // loop.mix.of("LDGSTS") if loop.mix.of("LDGSTS") else 1
            executed.add(loop.mix, n * blocks * WARPS * tiles * times)
            of_copies += loop.mix.n * times
        in_turn = ceil(tiles * ceil(item.n_chunks / groups) / item.n_chunks)
        of_tiles = in_turn * (turns.busy.mix.n + of_copies) + item.n_chunks * turns.ending.n
        of_tiles += parts * turns.parts.n
        of_item[item] = of_tiles + sum(loop.mix.n for loop in turns.around)
    kv = _kv_bytes(launch, cells)
    of_cell = kv / max(1, cells.n_seqs * (cells.depth + cells.n_queries))
    q_and_y = accessed(launch, "q") + accessed(launch, "y")
    combining = _Combining.of(launch, code)
    for task in _cut_tasks(items):
        executed.add(combining.loop.mix, combining.turns(task) * number(launch, "blocks_per_item"))
    blocks_s = _blocks_s(launch, items, of_item, combining)
    demand = Demand(
        kv + q_and_y + 2 * _state_bytes(launch, items),
        of_cell * sum(item.n_cells for item in items),
        executed.clocks(),
        f16_flops=2 * executed.macs("H"),
        n_blocks=len(blocks_s),
        blocks_s=blocks_s,
    )
    of_turn = turns.busy.mix.tensor_macs("H") // 1024
    covers = f"{rows // WARPS} rows x {n_cells} cells, {of_turn} Ki multiplications"
    return Covered(demand, executed.n, kv / 2, turns.busy.mix.n, covers)


def _blocks_s(
    launch: Prepared, items: Sequence[Item], of_item: dict[Item, float], combining: _Combining
) -> Sequence[float]:
    """Seconds of the blocks that have items, each by itself, in the order in which they begin.

    Loads wait for each other: header, item, task, queries, q; then the first tile. The block that
    takes the last item of a task is taken to be the one that combines.
    """
    combines = {id(task[0]): combining.seconds(task) for task in _cut_tasks(items)}
    x, y, z = launch.grid
    of_block = [0.0] * min(x, len(items))
    for i, item in enumerate(reversed(items)):
        instructions = of_item[replace(item, task=0)]
        of_block[i % x] += warp_s(H100, instructions) + 5 * L2_S + DRAM_S
        of_block[i % x] += combines.get(id(item), 0.0)
    return of_block * (y * z)


def _counted(items: Sequence[Item]) -> list[tuple[Item, int]]:
    """Items that are alike but for their task, and how many there are."""
    counts: dict[Item, int] = {}
    for item in items:
        alike = replace(item, task=0)
        counts[alike] = counts.get(alike, 0) + 1
    return list(counts.items())


@dataclass(frozen=True, slots=True)
class _Combining:
    """What the last block of a task that was cut does: 8 chunks of a row and 128 columns in turns,
    a row by each warp."""

    loop: Loop
    warps: int
    n_heads: int
    column_turns: int

    @staticmethod
    def of(launch: Prepared, code: Code) -> _Combining:
        loops = [
            loop
            for loop in code.body("combining").walk()
            if loop.mix.of("LDG") >= COLUMNS_AT_ONCE * CHUNKS_AHEAD and loop.mix.of("MUFU")
        ]
        heads = min(ne(launch, "q")[2] // ne(launch, "k")[2], _rows(launch))
        columns = ceil(ne(launch, "v")[0] / (32 * COLUMNS_AT_ONCE))
        return _Combining(loops[-1], launch.threads // 32, heads, columns)

    def turns(self, task: Sequence[Item]) -> int:
        """Of all warps of the block."""
        chunks = ceil(sum(item.n_chunks for item in task) / CHUNKS_AHEAD)
        return task[0].n_queries * self.n_heads * self.column_turns * chunks

    def seconds(self, task: Sequence[Item]) -> float:
        """Of a warp."""
        turns = ceil(self.turns(task) / self.warps)
        return L2_S + turns * (warp_s(H100, self.loop.mix.n) + 2 * L2_S)


def _cut_tasks(items: Sequence[Item]) -> list[list[Item]]:
    tasks: dict[int, list[Item]] = {}
    for item in items:
        if item.is_split:
            tasks.setdefault(item.task, []).append(item)
    return list(tasks.values())
