"""Requests of mixed lengths that arrive at random, by cache layout, beside llama.cpp's server.

    python benchmarks/mixture.py [model.gguf] --sequences 16 --peer-server ~/llama.cpp/llama-server
    python benchmarks/mixture.py model.gguf --sequences 16,32 --rate inf --requests 128

Arrivals are a seeded Poisson process of --rate requests a second ("inf": all at once); unless it is
given it is --load times the rate at which the first layout answers such requests in step. Lengths
of prompts and answers are log-normal and clipped to what a sequence holds. Answers are greedy, of
exactly the length that is asked for, and prompts are random tokens, so that none shares a prefix.
Every engine gets the same requests, in real time.

  t/s            tokens of all answers per second, from the first arrival to the last token
  loaded         the same up to the last first token of a request: later no request waits, and fewer
                 and fewer sequences run
  / in step      both in units of the tokens per second of the same engine "in step": all sequences
                 begin together, with prompts and answers of the mean lengths, and decode side by
                 side, over as many requests; plans are built before
  first token    milliseconds from an arrival to its first token, 50th and 99th percentile
  between        milliseconds between two tokens of an answer, 50th and 99th percentile
  running        of the sequences the share that runs, in the mean step
  plans          built from when the model was loaded
  building       the share of the steps' time in which plans are built
  late           the same after the first 50 steps
  waste          of the cells that are reserved for running sequences the share that holds no token,
                 in the mean step: slots reserved for future tokens, and internal fragmentation
                 (Kwon et al., 2023, section 3.1). A stream of the split cache is reserved
                 as long as its sequence runs, and so are the pages of the paged cache; the unified
                 cache reserves no cell before its token
  filled         of all cells the share that holds tokens of running sequences, in the mean step

Figures are medians of --rounds rounds, in which engines and layouts alternate, each in a process of
its own that loads the model. llama-server has a slot and a stream of its own for each sequence, and
the same context and threads. Its client is on the same cores, and takes 0.1 ms of one a token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

import ggmlpy
from benchmarks import llama_server, report
from benchmarks.arrivals import Arrival, Lengths, arrivals, speed
from benchmarks.engines import EngineError
from benchmarks.llama_server import LlamaServer
from benchmarks.report import RESULTS, about_run, count, numbers, rounded, save, tell, words
from benchmarks.serving import LAYOUTS, Setup, in_fresh_process, measure, pace
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.errors import GgmlpyError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model

MAX_SEQUENCES = 64
N_REQUESTS = 8  # for each sequence, unless told

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Mixture:
    """What arrives, and how often all of it is measured."""

    lengths: Lengths
    rate: float | None  # requests per second; None: `load` says
    load: float  # requests per second, in units of those in step
    n_requests: int | None  # None: N_REQUESTS for each sequence
    n_rounds: int
    seed: int
    layouts: tuple[str, ...]

    def requests(self, n_seqs: int, n_vocab: int, rate: float) -> tuple[Arrival, ...]:
        n = self.n_requests or N_REQUESTS * n_seqs
        return arrivals(n, rate, self.lengths, n_vocab, self.seed)


@dataclass(frozen=True, slots=True)
class Row:
    """One engine, in one layout, with a number of sequences: the figures of each round."""

    engine: str
    layout: str
    n_seqs: int
    n_requests: int
    n_prompt: int  # tokens of all prompts
    n_predict: int  # of all answers
    rate: float
    rounds: tuple[Figures, ...]

    def median(self, name: str) -> float | None:
        """Of a figure; None if a round has none."""
        values = [figures.get(name) for figures in self.rounds]
        known = [value for value in values if value is not None]
        return statistics.median(known) if len(known) == len(values) else None

    def as_record(self) -> dict[str, Any]:
        """The medians by name beside what was measured, and every round."""
        names = self.rounds[0]
        about = {name: getattr(self, name) for name in self.__slots__ if name != "rounds"}
        about["rate"] = str(self.rate) if self.rate == float("inf") else self.rate
        return about | {name: self.median(name) for name in names} | {"rounds": list(self.rounds)}


def measure_all(mixture: Mixture, setup: Setup, n_vocab: int, peer: str | None) -> Iterator[Row]:
    """Every layout, and the peer if there is one, in turns, with one number of sequences."""
    rate = mixture.rate or _rate(mixture, setup, n_vocab)
    requests = mixture.requests(setup.n_seqs, n_vocab, rate)
    engines = [("ggmlpy", layout) for layout in mixture.layouts]
    if peer is not None:
        engines.append((llama_server.NAME, "split"))
    rounds: dict[tuple[str, str], list[Figures]] = {engine: [] for engine in engines}
    for i in range(mixture.n_rounds):
        for name, layout in engines:
            tell(
                f"{name}, {layout}, {setup.n_seqs} sequences: {len(requests)} requests,"
                f" {rounded(rate)} a second, round {i + 1} of {mixture.n_rounds}"
            )
            if name == "ggmlpy":
                figures = _ours(setup, layout, requests, mixture.seed)
            else:
                assert peer is not None
                figures = _peers(peer, setup, requests)
            rounds[name, layout].append(figures)
    for (name, layout), each in rounds.items():
        yield Row(
            name, layout, setup.n_seqs, len(requests), sum(len(r.prompt) for r in requests),
            sum(r.n_predict for r in requests), rate, tuple(each),
        )  # fmt: skip


def _rate(mixture: Mixture, setup: Setup, n_vocab: int) -> float:
    """Requests per second, from the speed of the first layout in step."""
    tell(f"ggmlpy, {mixture.layouts[0]}, {setup.n_seqs} sequences in step, for the rate")
    requests = mixture.requests(setup.n_seqs, n_vocab, 1.0)
    tokens_per_s = in_fresh_process(pace, setup, mixture.layouts[0], requests, mixture.seed)
    per_request = statistics.fmean(request.n_predict for request in requests)
    return mixture.load * float(tokens_per_s) / per_request


def _ours(setup: Setup, layout: str, requests: Sequence[Arrival], seed: int) -> Figures:
    found = asdict(in_fresh_process(measure, setup, layout, requests, seed))
    figures: Figures = found.pop("speed") | found
    for name in ("tokens_per_s", "loaded_tokens_per_s"):
        figures[f"{name}_against_in_step"] = figures[name] / found["in_step_tokens_per_s"]
    return figures


def _peers(program: str, setup: Setup, requests: Sequence[Arrival]) -> Figures:
    with LlamaServer(program, setup) as server:
        times = server.serve(requests, f"{llama_server.NAME}, {setup.n_seqs} sequences")
    return asdict(speed(requests, times))


# --- showing ------------------------------------------------------------------------------------

Text = Callable[[float | None], str]


def milliseconds(value: float | None) -> str:
    return rounded(None if value is None else 1e3 * value)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


# Title, figure, and how it is written.
SPEED: Sequence[tuple[str, str, Text]] = (
    ("t/s", "tokens_per_s", rounded),
    ("/ in step", "tokens_per_s_against_in_step", rounded),
    ("loaded\nt/s", "loaded_tokens_per_s", rounded),
    ("\n/ in step", "loaded_tokens_per_s_against_in_step", rounded),
    ("first token\np50 ms", "first_token_p50_s", milliseconds),
    ("\np99 ms", "first_token_p99_s", milliseconds),
    ("between\np50 ms", "between_tokens_p50_s", milliseconds),
    ("\np99 ms", "between_tokens_p99_s", milliseconds),
)
INSIDE: Sequence[tuple[str, str, Text]] = (
    ("in step\nt/s", "in_step_tokens_per_s", rounded),
    ("steps", "n_steps", whole),
    ("running", "running_share", percent),
    ("plans", "n_plans_built", whole),
    ("building", "build_share", percent),
    ("\nlate", "late_build_share", percent),
    ("waste", "waste", percent),
    ("filled", "cache_share", percent),
    ("preempted", "n_preempted", whole),
)


def show(rows: Sequence[Row], title: str) -> None:
    """A line for each engine and layout; plans and memory of ggmlpy in a table below."""
    report.show(_table(rows, title, SPEED))
    report.show(_table([row for row in rows if row.engine == "ggmlpy"], "ggmlpy", INSIDE))


def _table(rows: Sequence[Row], title: str, columns: Sequence[tuple[str, str, Text]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("seqs", justify="right")
    table.add_column("cache")
    for column, _, _ in columns:
        table.add_column(column, justify="right")
    for i, row in enumerate(rows):
        texts = [text(row.median(name)) for _, name, text in columns]
        engine = row.layout if row.engine == "ggmlpy" else row.engine
        is_last = i + 1 == len(rows) or rows[i + 1].n_seqs != row.n_seqs
        table.add_row(str(row.n_seqs), engine, *texts, end_section=is_last)
    return table


# --- the command --------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=ggmlpy.packaged_model())
    parser.add_argument(
        "--peer-server", metavar="PATH", help="llama.cpp's llama-server; without: ggmlpy alone"
    )
    parser.add_argument(
        "--sequences", type=numbers, default=[16], metavar="N,N…", help="1 to 64 (16)"
    )
    parser.add_argument("--layouts", type=words, default=list(LAYOUTS), help=",".join(LAYOUTS))
    parser.add_argument("--requests", type=count, help=f"{N_REQUESTS} for each sequence")
    parser.add_argument("--rate", type=positive, help='requests per second; "inf": all at once')
    parser.add_argument(
        "--load", type=positive, default=1.5, help="the rate in units of that in step (1.5)"
    )
    parser.add_argument("--prompt-tokens", type=positive, default=64, help="the median (64)")
    parser.add_argument("--answer-tokens", type=positive, default=64, help="the median (64)")
    parser.add_argument(
        "--sigma", type=positive, default=0.8, help="the spread of the lengths' logarithms (0.8)"
    )
    parser.add_argument(
        "--ctx-seq", type=count, help="tokens that a sequence may have (1024, or the model's)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument(
        "--threads", type=count, default=default_n_threads(), help="one for each core"
    )
    parser.add_argument("--backend", default="cpu", help="of ggmlpy")
    parser.add_argument("--json", action="store_true", help="a line for each row, and no table")
    parser.add_argument(
        "--save", type=report.results_file, nargs="?", const=RESULTS / "mixture.json",
        metavar="FILE", help="keep the figures (benchmarks/results/mixture.json)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    for layout in options.layouts:
        if layout not in LAYOUTS:
            parser.error(f"--layouts: there is no {layout}, but {', '.join(LAYOUTS)}")
    for n_seqs in options.sequences:
        if not 1 <= n_seqs <= MAX_SEQUENCES:
            parser.error(f"--sequences: {n_seqs} is not 1 to {MAX_SEQUENCES}")
    return options


def positive(text: str) -> float:
    """A number above 0, of an option; it may be inf."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def run(options: argparse.Namespace) -> None:
    """Measure, show the results, and keep them if --save is given."""
    hparams = load_model(GGUFFile.open(options.model)).hparams
    n_ctx_seq = options.ctx_seq or min(1024, hparams.n_ctx_train)
    mixture = Mixture(
        lengths=Lengths(options.prompt_tokens, options.answer_tokens, options.sigma, n_ctx_seq),
        rate=options.rate,
        load=options.load,
        n_requests=options.requests,
        n_rounds=options.rounds,
        seed=options.seed,
        layouts=tuple(options.layouts),
    )
    about = about_run(options.threads, [])
    if options.peer_server is not None:
        of_peer = llama_server.version(options.peer_server)
        about["engines"] = [{"name": llama_server.NAME, "version": of_peer}]
    rows: list[Row] = []
    for n_seqs in options.sequences:
        setup = Setup(options.model, n_seqs, n_ctx_seq, options.threads, options.backend)
        for row in measure_all(mixture, setup, hparams.n_vocab, options.peer_server):
            rows.append(row)
            if options.json:
                print(json.dumps(row.as_record()), flush=True)
    if not options.json:
        show(rows, f"{options.model.name}, {n_ctx_seq} tokens a sequence")
    doubts = report.warnings_of(about, [])
    report.warn(doubts)
    if options.save:
        plan = asdict(mixture) | {"rate": None if mixture.rate is None else str(mixture.rate)}
        records = [row.as_record() for row in rows]
        save(
            options.save, options.model.stem,
            {**about, "doubts": doubts, "plan": plan, "rows": records},
        )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        run(options)
    except (EngineError, GgmlpyError, OSError) as error:
        return report.fail(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
