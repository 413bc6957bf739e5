"""Decoding many sequences at growing depth, by cache layout, compared with llama.cpp.

    python benchmarks/depth.py model.gguf --peer ~/llama/bin/python
    python benchmarks/depth.py model.gguf --sequences 8 --depths 0,4096 --type-k q8_0 --type-v q8_0

Every sequence holds `depth` tokens of its own, none of them shared, and decodes one more per step.
The layouts of the cache are:

  split        a stream for each sequence
  paged        one stream for all, in pages that belong to one sequence each (ggmlpy only)
  unified      one stream for all; the tokens of a sequence are contiguous, as after prompts
  interleaved  one stream for all; a token of each sequence, then the next of each, as after
               sequences that were decoded together (ggmlpy only: llama.cpp loads a state into
               contiguous cells of an empty cache)

A prompt is run once in each layout, and its cells are copied to all sequences. "floors" is the time
of a step in units of the time that reading all weights, and K and V of every sequence, would take
at the bandwidth of numpy in the same run; "/ split" is it in units of a step of the split cache.
With an advantage above 1 ggmlpy is faster. Each figure is the median of all steps of --rounds
rounds, in which the engines alternate; nothing is sampled. For the peer's Python see
vs_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from benchmarks.engines import EngineError, EngineProcess, in_turns
from benchmarks.report import RESULTS, about_run, count, numbers, rounded, save, tell
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.bench.bandwidth import read_bandwidth

LAYOUTS = ("split", "paged", "unified", "interleaved")
OURS_ONLY = ("paged", "interleaved")
N_WARM = 1  # steps before those that are timed: the first may have to build a graph


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how often."""

    n_seqs: int
    depths: Sequence[int]
    layouts: Sequence[str]
    n_steps: int
    n_rounds: int
    type_k: str
    type_v: str

    @property
    def n_ctx(self) -> int:
        """Tokens of all sequences."""
        return self.n_seqs * (max(self.depths) + N_WARM + self.n_steps)


@dataclass(frozen=True, slots=True)
class Row:
    """All sequences at one depth, in one layout: the steps of each engine, by its name."""

    depth: int
    layout: str
    n_seqs: int
    steps_s: dict[str, list[float]]
    bytes_read: int  # at least, in the median step

    def step_s(self, engine: str) -> float | None:
        return statistics.median(self.steps_s[engine]) if engine in self.steps_s else None

    def rate(self, engine: str) -> float | None:
        """Tokens a second, of all sequences."""
        step_s = self.step_s(engine)
        return self.n_seqs / step_s if step_s else None

    def floors(self, engine: str, bandwidth: float) -> float | None:
        """The step's time in units of what reading alone would take."""
        step_s = self.step_s(engine)
        return step_s * bandwidth / self.bytes_read if step_s else None

    @property
    def advantage(self) -> float | None:
        """How many times faster ggmlpy is."""
        ours, peer = self.step_s("ggmlpy"), self.step_s("llama.cpp")
        return peer / ours if ours and peer else None


def measure(settings: Settings, engines: Sequence[EngineProcess]) -> Iterator[Row]:
    """Every layout at every depth, on engines that have loaded a model, ggmlpy the first."""
    ours = engines[0]
    opened: str | None = None
    for layout in settings.layouts:
        cache = "unified" if layout == "interleaved" else layout
        taking_part = [ours] if layout in OURS_ONLY else list(engines)
        if cache != opened:
            for engine in taking_part:
                tell(f"{engine.name}, {layout}: a prompt of {max(settings.depths)} tokens")
                engine.open(
                    settings.n_ctx, settings.n_seqs, cache, settings.type_k, settings.type_v
                )
                engine.prepare(settings.depths)
            opened = cache
        for depth in settings.depths:
            if layout == "interleaved" and depth == 0:
                continue  # nothing lies anywhere: it is the unified cache
            tell(f"{layout}, depth {depth}, {settings.n_rounds} rounds of {settings.n_steps} steps")
            yield _row(settings, layout, depth, taking_part)


def _row(settings: Settings, layout: str, depth: int, engines: Sequence[EngineProcess]) -> Row:
    rounds = in_turns(
        engines,
        settings.n_rounds,
        lambda engine: engine.decode(
            settings.n_seqs,
            settings.n_steps,
            depth=depth,
            n_warm=N_WARM,
            interleaved=layout == "interleaved",
        ),
    )
    steps_s = {name: [s for seconds in each for s in seconds] for name, each in rounds.items()}
    half_way = depth + N_WARM + (settings.n_steps + 1) // 2
    bytes_read = engines[0].step_bytes(settings.n_seqs, half_way)
    return Row(depth, layout, settings.n_seqs, steps_s, bytes_read)


# --- showing ------------------------------------------------------------------------------------


def against_split(row: Row, rows: Sequence[Row], engine: str) -> float | None:
    """The step's time in units of the split cache's at the same depth; None for itself."""
    split = next((r for r in rows if r.layout == "split" and r.depth == row.depth), row)
    step_s, split_s = row.step_s(engine), split.step_s(engine)
    return step_s / split_s if split is not row and step_s and split_s else None


def show(rows: Sequence[Row], bandwidth: float, title: str) -> None:
    """A line for each depth and layout: time, speed, floors and / split of both engines."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("depth", justify="right")
    table.add_column("cache")
    for engine in ("ggmlpy", "llama.cpp"):
        for column in (f"{engine}\nms", "\nt/s", "\nfloors", "\n/ split"):
            table.add_column(column, justify="right")
    table.add_column("\nadvantage", justify="right")
    depths = list(dict.fromkeys(row.depth for row in rows))
    for depth in depths:
        of_depth = [row for row in rows if row.depth == depth]
        for row in of_depth:
            cells = [
                value
                for engine in ("ggmlpy", "llama.cpp")
                for value in _figures(row, rows, engine, bandwidth)
            ]
            texts = [rounded(value) for value in (*cells, row.advantage)]
            table.add_row(str(depth), row.layout, *texts, end_section=row is of_depth[-1])
    report.show(table)
    print(f"read bandwidth {bandwidth / 1e9:.1f} GB/s")


def _figures(
    row: Row, rows: Sequence[Row], engine: str, bandwidth: float
) -> tuple[float | None, ...]:
    step_s = row.step_s(engine)
    return (
        1e3 * step_s if step_s else None,
        row.rate(engine),
        row.floors(engine, bandwidth),
        against_split(row, rows, engine),
    )


def as_entries(rows: Sequence[Row], bandwidth: float) -> list[dict[str, object]]:
    return [
        asdict(row)
        | {
            "step_s": {name: row.step_s(name) for name in row.steps_s},
            "tokens_per_s": {name: row.rate(name) for name in row.steps_s},
            "floors": {name: row.floors(name, bandwidth) for name in row.steps_s},
            "against_split": {name: against_split(row, rows, name) for name in row.steps_s},
            "advantage": row.advantage,
        }
        for row in rows
    ]


# --- the command --------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file; benchmarks/models.py makes some")
    parser.add_argument("--peer", help="a Python that has llama-cpp-python; without: ggmlpy alone")
    parser.add_argument("--sequences", type=count, default=32)
    parser.add_argument("--depths", type=numbers, default=[0, 512, 1024, 2048, 4096])
    parser.add_argument(
        "--layouts", type=report.words, default=list(LAYOUTS), help=",".join(LAYOUTS)
    )
    parser.add_argument("--steps", type=count, default=8, help="timed in a round")
    parser.add_argument("--rounds", type=count, default=2)
    parser.add_argument("--type-k", default="f16", help="of the cache: f16, q8_0, …")
    parser.add_argument("--type-v", default="f16")
    parser.add_argument(
        "--threads", type=count, default=default_n_threads(), help="one for each core"
    )
    parser.add_argument("--backend", default="cpu", help="of ggmlpy")
    parser.add_argument(
        "--save", type=report.results_file, nargs="?", const=RESULTS / "depth.json", metavar="FILE",
        help="keep the figures (benchmarks/results/depth.json)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    for layout in options.layouts:
        if layout not in LAYOUTS:
            parser.error(f"--layouts: there is no {layout}, but {', '.join(LAYOUTS)}")
    return options


def run(settings: Settings, options: argparse.Namespace) -> None:
    """Both engines on these settings; shows the results, and keeps them if --save is given."""
    engines: list[EngineProcess] = []
    try:
        engines.append(EngineProcess.ours(options.backend))
        if options.peer is not None:
            engines.append(EngineProcess.peer(options.peer))
        about = about_run(options.threads, engines)
        tell("the read bandwidth")
        bandwidths = [read_bandwidth(options.threads)]
        for engine in engines:
            tell(f"{engine.name} loads {options.model.name}")
            engine.load(options.model, options.threads)
        rows = list(measure(settings, engines))
        bandwidths.append(read_bandwidth(options.threads))
        doubts = report.warnings_of(about, engines)
    finally:
        for engine in engines:
            engine.close()
    bandwidth = statistics.mean(bandwidths)
    cache = f"{settings.type_k}/{settings.type_v}"
    show(rows, bandwidth, f"{options.model.name}, {settings.n_seqs} sequences, cache {cache}")
    report.warn(doubts)
    if options.save:
        entry = {
            **about,
            "read_bandwidth_gbs": bandwidth / 1e9,
            "idle_share": {engine.name: engine.idle_share for engine in engines},
            "doubts": doubts,
            "plan": asdict(settings),
            "rows": as_entries(rows, bandwidth),
        }
        save(options.save, f"{options.model.stem}, {settings.n_seqs} sequences, {cache}", entry)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = Settings(
        n_seqs=options.sequences,
        depths=options.depths,
        layouts=options.layouts,
        n_steps=options.steps,
        n_rounds=options.rounds,
        type_k=options.type_k,
        type_v=options.type_v,
    )
    try:
        run(settings, options)
    except (EngineError, OSError) as error:
        return report.fail(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
