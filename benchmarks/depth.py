"""Writing by many sequences at growing depth: a cache for each sequence against one for all.

    python benchmarks/depth.py model.gguf [--sequences 32] [--depths 0,512,1024,2048,4096]

Every sequence holds as many tokens of its own, as if none shared anything, and writes one more a
step. The floor of a step is the time that this machine's memory takes to deliver all weights, and
K and V of every sequence, once. Prints a table; --save writes benchmarks/results/depth.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llvmlite.binding import get_host_cpu_name

from ggmlpy.bandwidth import read_bandwidth
from ggmlpy.bench import (
    Setup,
    kept_bytes,
    open_context,
    prompt_batches,
    random_tokens,
    timed_steps,
    weight_bytes,
)
from ggmlpy.cli.table import Column, Table
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.state import SequenceState, put_state, take_state

RESULTS = Path(__file__).parent / "results" / "depth.json"


@dataclass(frozen=True, slots=True)
class Row:
    """The steps of all sequences at one depth, in one layout of the cache."""

    depth: int
    kv_unified: bool
    n_seqs: int
    steps_s: list[float]
    bytes_read: int  # at least, in the median step

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def rate(self) -> float:
        """Tokens a second, of all sequences."""
        return self.n_seqs / self.step_s

    def floors(self, bandwidth: float) -> float:
        """The step's time in units of what reading alone would take."""
        return self.step_s * bandwidth / self.bytes_read


def measure(
    file: GGUFFile,
    setup: Setup,
    n_seqs: int,
    depths: Sequence[int],
    n_steps: int,
    tell: Callable[[str], None],
) -> list[Row]:
    """Every depth in both layouts: `n_steps` steps each, and one before them that builds the plan.

    A prompt is run once, by one sequence; every sequence then gets what it left in the cache, as
    cells of its own in either layout.
    """
    tell(f"a prompt of {max(depths)} tokens")
    states = prompt_states(file, setup, sorted(depths))
    rows = []
    for kv_unified in (False, True):
        n_ctx = n_seqs * (max(depths) + n_steps + 1)
        context = open_context(file, setup, n_ctx=n_ctx, n_seq_max=n_seqs, kv_unified=kv_unified)
        for depth in depths:
            tell(f"{'unified' if kv_unified else 'split'}, depth {depth}")
            context.memory.clear()
            for seq in range(n_seqs):
                put_state(context.memory, seq, states[depth])
            steps_s = timed_steps(context, n_seqs, n_steps + 1)[1:]
            kept = kept_bytes(context.memory, depth + (n_steps + 3) // 2)  # after half of them
            n_read = weight_bytes(file, context) + n_seqs * kept
            rows.append(Row(depth, kv_unified, n_seqs, steps_s, n_read))
    return rows


def prompt_states(file: GGUFFile, setup: Setup, depths: Sequence[int]) -> dict[int, SequenceState]:
    """What a sequence of each length leaves in the cache; `depths` rise."""
    context = open_context(file, setup, n_ctx=max(1, *depths))
    (tokens,) = random_tokens(context, 1, max(depths))
    states = {}
    for depth in depths:
        there = context.n_past()
        for batch in prompt_batches([tokens[there:depth]], setup.n_batch, there):
            context.decode_batch(batch)
        states[depth] = take_state(context.memory, 0)
    return states


def show(rows: Sequence[Row], bandwidth: float) -> None:
    """A line a depth: step time, speed, and the step in units of its floor, in either layout."""
    titles = [
        f"{layout} {unit}" for layout in ("split", "unified") for unit in ("ms", "t/s", "floors")
    ]
    table = Table([Column("depth"), *(Column(title) for title in titles), Column("unified/split")])
    split = {row.depth: row for row in rows if not row.kv_unified}
    unified = {row.depth: row for row in rows if row.kv_unified}
    for depth, row in split.items():
        other = unified[depth]
        cells = [
            text
            for r in (row, other)
            for text in (f"{1e3 * r.step_s:.2f}", f"{r.rate:.1f}", f"{r.floors(bandwidth):.2f}")
        ]
        table.row([str(depth), *cells, f"{other.step_s / row.step_s:.2f}"])


def numbers(text: str) -> list[int]:
    """`0,512` as a list."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--depths", type=numbers, default=[0, 512, 1024, 2048, 4096])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, help="one per core unless given")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--cache-type", default="f16", help="of K and V")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    setup = Setup(
        n_threads=options.threads,
        backend=options.backend,
        type_k=options.cache_type,
        type_v=options.cache_type,
    )
    bandwidth = read_bandwidth(setup.threads)
    with GGUFFile.open(options.model) as file:
        rows = measure(
            file, setup, options.sequences, options.depths, options.steps,
            lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    show(rows, bandwidth)
    print(f"read bandwidth {bandwidth / 1e9:.1f} GB/s, {setup.threads} threads")
    if options.save:
        about = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "model": options.model.name,
            "threads": setup.threads,
            "cache_type": options.cache_type,
            "machine": f"{get_host_cpu_name()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "read_bandwidth_gbs": bandwidth / 1e9,
        }
        figures = [
            asdict(row) | {"tokens_per_s": row.rate, "floors": row.floors(bandwidth)}
            for row in rows
        ]
        text = json.dumps({**about, "rows": figures}, indent=1)
        RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
