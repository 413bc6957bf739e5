"""`ggmlpy serve` beside llama.cpp's server: many clients that stream completions over HTTP.

    python benchmarks/serve.py [model.gguf] --peer-server ~/llama.cpp/llama-server
    python benchmarks/serve.py model.gguf --clients 1,8,32 --requests 4 --save

Each client sends its requests one after another, at seeded times; lengths of prompts and answers
are log-normal and seeded, prompts are random tokens, answers are greedy and of exactly the length
that is asked for. Both servers get the same requests, have as many slots as the most clients, the
same context and threads, and take turns; figures are medians of --rounds.

  t/s            tokens of all answers per second, from the first request to the last token
  first token    milliseconds from a request to its first token, 50th and 99th percentile
  between        milliseconds between two tokens of an answer, 50th and 99th percentile
  loop           microseconds a token that the thread of ggmlpy's event loop runs: what serving
                 costs beside the engine

The clients are on the same cores, in one process. --save writes benchmarks/results/serve.json.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

import ggmlpy
from benchmarks import llama_server, report
from benchmarks.arrivals import Arrival, Lengths, arrivals
from benchmarks.engines import EngineError
from benchmarks.http_clients import serve_all
from benchmarks.llama_server import LlamaServer
from benchmarks.report import RESULTS, about_run, count, numbers, rounded, save, tell
from benchmarks.server_process import HOST, ServerProcess, free_port
from benchmarks.serving import Setup
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.errors import GgmlpyError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model

NAME = "ggmlpy serve"
Figures = dict[str, float]
_TIMES = (
    "first_token_p50_s",
    "first_token_p99_s",
    "between_tokens_p50_s",
    "between_tokens_p99_s",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One server with a number of clients: the figures of each round."""

    server: str
    n_clients: int
    rounds: tuple[Figures, ...]

    def median(self, name: str) -> float | None:
        values = [each[name] for each in self.rounds if name in each]
        return statistics.median(values) if values else None


def our_command(setup: Setup, port: int) -> list[str]:
    """How `ggmlpy serve` is started."""
    options = {
        "--model": setup.model.resolve(),
        "--host": HOST,
        "--port": port,
        "--parallel": setup.n_seqs,
        "--ctx-size": setup.n_ctx,
        "--threads": setup.n_threads,
        "--cache-ram": 0,
    }
    listed = [str(part) for option in options.items() for part in option]
    return [sys.executable, "-m", "ggmlpy", "serve", *listed, "--no-webui"]


def requests_of(
    n_clients: int, n_each: int, lengths: Lengths, n_vocab: int, seed: int
) -> list[list[Arrival]]:
    """The requests of each client; `at_s` are the seconds between them, 50 ms in the mean."""
    pauses = random.Random(f"{seed} pauses")
    made = arrivals(n_clients * n_each, 1.0, lengths, n_vocab, seed)
    timed = [Arrival(pauses.expovariate(20), each.prompt, each.n_predict) for each in made]
    return [timed[i::n_clients] for i in range(n_clients)]


def measure(server: ServerProcess, requests: Sequence[Sequence[Arrival]]) -> Figures:
    """All requests of all clients, once."""
    n_tokens = sum(each.n_predict for own in requests for each in own)
    before = server.cpu_s()
    with report.progress(f"{server.name}, {len(requests)} clients", n_tokens) as advance:
        try:
            answers = serve_all(server.port, requests, advance)
        except EngineError as error:
            raise (server.death() if server.has_ended() else error) from None
    after = server.cpu_s()
    found = [each for own in answers for each in own]
    first = [times[0] - sent for sent, times in found]
    between = [b - a for _, times in found for a, b in itertools.pairwise(times)]
    spent = max(times[-1] for _, times in found) - min(sent for sent, _ in found)
    figures = {
        "tokens_per_s": n_tokens / spent,
        "first_token_p50_s": float(np.percentile(first, 50)),
        "first_token_p99_s": float(np.percentile(first, 99)),
        "between_tokens_p50_s": float(np.percentile(between, 50)),
        "between_tokens_p99_s": float(np.percentile(between, 99)),
    }
    if before is not None and after is not None and server.name == NAME:
        figures["loop_us"] = 1e6 * (after - before) / n_tokens
    return figures


def measure_all(options: argparse.Namespace, setup: Setup, n_vocab: int) -> Iterator[Row]:
    """Both servers in turns: each round is in fresh processes, with a run before it whose times do
    not count."""
    lengths = Lengths(options.prompt_tokens, options.answer_tokens, options.sigma, setup.n_ctx_seq)
    found: dict[tuple[str, int], list[Figures]] = {}
    for i in range(options.rounds):
        names = [NAME] + [llama_server.NAME] * bool(options.peer_server)
        for name in names if i % 2 == 0 else names[::-1]:
            with _started(name, options, setup) as server:
                warm = requests_of(max(options.clients), 1, lengths, n_vocab, -1 - i)
                serve_all(server.port, warm, lambda n: None)
                for n_clients in options.clients:
                    tell(f"{name}, {n_clients} clients, round {i + 1} of {options.rounds}")
                    n_each = options.requests * max(1, 8 // n_clients)
                    # Other prompts for each number of clients: none is in the cache already.
                    seed = 1000 * i + n_clients
                    requests = requests_of(n_clients, n_each, lengths, n_vocab, seed)
                    found.setdefault((name, n_clients), []).append(measure(server, requests))
    for n_clients in options.clients:
        for name in names:
            yield Row(name, n_clients, tuple(found[name, n_clients]))


def _started(name: str, options: argparse.Namespace, setup: Setup) -> ServerProcess:
    if name == NAME:
        port = free_port()
        return ServerProcess(NAME, our_command(setup, port), port, setup.model.name)
    return LlamaServer(options.peer_server, setup)


def table(rows: Sequence[Row], title: str) -> Table:
    """A line for each server and number of clients."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for name in ("clients", "server", "t/s", "ratio", "first token\np50 ms", "\np99 ms"):
        made.add_column(name, justify="left" if name == "server" else "right")
    for name in ("between\np50 ms", "\np99 ms", "loop us"):
        made.add_column(name, justify="right")
    speeds = {(row.server, row.n_clients): row.median("tokens_per_s") for row in rows}
    for i, row in enumerate(rows):
        ours, theirs = (speeds.get((n, row.n_clients)) for n in (NAME, llama_server.NAME))
        ratio = f"{ours / theirs:.2f}" if ours and theirs and row.server == NAME else ""
        values = [row.median(name) for name in _TIMES]
        loop = row.median("loop_us")
        made.add_row(
            str(row.n_clients),
            row.server,
            rounded(row.median("tokens_per_s")),
            ratio,
            *("-" if value is None else rounded(1e3 * value) for value in values),
            "" if loop is None else rounded(loop),
            end_section=i + 1 == len(rows) or rows[i + 1].n_clients != row.n_clients,
        )
    return made


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=ggmlpy.packaged_model())
    parser.add_argument("--peer-server", metavar="PATH", help="llama.cpp's llama-server")
    parser.add_argument("--clients", type=numbers, default=[1, 8, 32], metavar="N,N…")
    parser.add_argument("--requests", type=count, default=3, help="of each client; of 1, 8 times")
    parser.add_argument("--prompt-tokens", type=float, default=64, help="the median (64)")
    parser.add_argument("--answer-tokens", type=float, default=64, help="the median (64)")
    parser.add_argument("--sigma", type=float, default=0.5, help="spread of the logarithms (0.5)")
    parser.add_argument("--ctx-seq", type=count, help="tokens of a sequence (512, or the model's)")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--threads", type=count, default=default_n_threads())
    parser.add_argument("--save", action="store_true", help="write serve.json")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Measure, show the results, and keep them if --save is given."""
    hparams = load_model(GGUFFile.open(options.model)).hparams
    n_ctx_seq = options.ctx_seq or min(512, hparams.n_ctx_train)
    setup = Setup(options.model, max(options.clients), n_ctx_seq, options.threads, "cpu")
    about: dict[str, Any] = about_run(options.threads, [])
    if options.peer_server is not None:
        of_peer = llama_server.version(options.peer_server)
        about["engines"] = [{"name": llama_server.NAME, "version": of_peer}]
    rows = list(measure_all(options, setup, hparams.n_vocab))
    report.show(table(rows, f"{options.model.name}, {n_ctx_seq} tokens a sequence"))
    doubts = report.warnings_of(about, [])
    report.warn(doubts)
    if options.save:
        records = [
            {"server": r.server, "n_clients": r.n_clients, "rounds": list(r.rounds)} for r in rows
        ]
        found = {**about, "doubts": doubts, "rows": records}
        save(RESULTS / "serve.json", options.model.stem, found)


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
