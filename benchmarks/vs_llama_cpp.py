"""ggmlpy and llama.cpp alternately, in one run, on the same files with the same threads.

    python benchmarks/vs_llama_cpp.py --peer ~/llama/bin/python
    python benchmarks/vs_llama_cpp.py --peer … --model Gemma-3-1B --types q4_0 --only decode,prompt

The peer is the llama.cpp of llama-cpp-python, in a Python environment of its own, in which ggmlpy
need not be installed. For a fair comparison compile it for the machine, as here for AVX-512
(GGML_NATIVE=ON would add AMX, with which some releases crash on an illegal instruction):

    python -m venv ~/llama
    export CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON
                       -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
    ~/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python

OpenVINO GenAI is a second peer with --openvino, in an environment of its own (both packages of one
release). It reads the same file, and gets the same prompts as token ids; it decodes its own greedy
choices, and its step of streams is one of its ContinuousBatchingPipeline. A file that it cannot
load is told, and has no figures of it.

    python -m venv ~/openvino
    ~/openvino/bin/pip install openvino==2026.4.0 openvino-genai==2026.4.0.0
    python benchmarks/vs_llama_cpp.py --peer … --openvino ~/openvino/bin/python

Models of real shapes with random weights are made when they are first needed, and kept in --models.

  load      files in the page cache: from opening the file to the first token's logits, and the
            peak memory of the process after a prompt, also in units of the sizes of file, cache
            and graphs
  prompt    a prompt of --prompt-tokens, llama-bench's pp512
  decode    --decode-tokens decoded one by one from an empty cache, llama-bench's tg128
  streams   a token a step for each of --streams sequences, each with a cache of its own and
            --stream-depth tokens in it, llama-batched-bench's S_TG

Each test is repeated --repeat times, one engine after the other (A B A B …): prompts and streams
while the other engine sleeps, load and decode in a fresh process each time, because the speed of
reading weights depends on their physical memory. The table gives medians; with an advantage above 1
ggmlpy is better. Nothing is sampled. "ceiling" is the rate at which weights and cache could be read
once a step, at the bandwidth of numpy in the same run; "GB/s" is what ggmlpy reads, also as a share
of that bandwidth.
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
from benchmarks.agreement import (
    Floats,
    check_choice,
    check_same,
    choice_of,
    compare_logits,
    logits_of,
)
from benchmarks.engines import OPENVINO, EngineError, EngineProcess, in_turns
from benchmarks.models import FILE_TYPES, SHAPES, kept_model
from benchmarks.report import RESULTS, about_run, count, numbers, rounded, save, tell, words
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.bench.bandwidth import read_bandwidth
from ggmlpy.common.own_folder import default_folder
from ggmlpy.errors import GgmlpyError

TESTS = ("load", "prompt", "decode", "streams")
CONTEXT = 1024  # tokens, with which loading and memory are compared


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how often."""

    tests: Sequence[str]
    n_repeat: int
    n_threads: int
    n_prompt: int
    n_decode: int
    streams: Sequence[int]
    n_stream_steps: int
    stream_depth: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: samples of each engine, by its name."""

    test: str
    unit: str  # "t/s", "s", "MB" or "x"
    samples: dict[str, list[float]]
    token_bytes: float | None = None  # that have to be read for a token, at least

    def median(self, engine: str) -> float | None:
        return statistics.median(self.samples[engine]) if engine in self.samples else None

    def advantage(self, other: str = "llama.cpp") -> float | None:
        """How many times better ggmlpy is than another engine: faster, or in need of less."""
        ours, theirs = self.median("ggmlpy"), self.median(other)
        if not ours or not theirs:
            return None
        return ours / theirs if self.unit == "t/s" else theirs / ours

    @property
    def bytes_read(self) -> float | None:
        """By ggmlpy, in a second, at least."""
        ours = self.median("ggmlpy")
        return ours * self.token_bytes if ours and self.token_bytes else None


# --- the tests ----------------------------------------------------------------------------------


class Bench:
    """The engines on one model."""

    def __init__(self, path: Path, settings: Settings, engines: Sequence[EngineProcess]) -> None:
        self.path = path
        self.settings = settings
        self.engines = engines
        self.bandwidths: list[float] = []
        self.logits_nmse: float | None = None

    def run(self) -> Iterator[Figure]:
        """The tests that need no fresh process."""
        if not {"prompt", "streams"} & set(self.settings.tests):
            return
        for engine in self.engines:
            tell(f"{engine.name} loads {self.path.name}")
            engine.load(self.path, self.settings.n_threads)
        if "prompt" in self.settings.tests:
            yield self._prompt()
        if "streams" in self.settings.tests:
            for n_seqs in self.settings.streams:
                yield self._streams(n_seqs)
        self.bandwidths.append(read_bandwidth(self.settings.n_threads))

    def _prompt(self) -> Figure:
        n = self.settings.n_prompt
        for engine in self.engines:
            tell(f"{engine.name} warms up")
            engine.open(n)
            engine.prompt(n)
        self.logits_nmse = compare_logits(self.path, n, self.engines)
        tell(f"prompt, {n} tokens, {self.settings.n_repeat} times each")
        seconds = in_turns(self.engines, self.settings.n_repeat, lambda engine: engine.prompt(n))
        rates = {name: [n / s for s in each] for name, each in seconds.items()}
        return Figure(f"prompt {n}", "t/s", rates)

    def _streams(self, n_seqs: int) -> Figure:
        settings = self.settings
        tell(f"{n_seqs} streams, {settings.n_stream_steps} steps, {settings.n_repeat} times each")
        for engine in self.engines:
            engine.open(n_seqs * (settings.stream_depth + settings.n_stream_steps), n_seqs)
            engine.prepare([settings.stream_depth])
            engine.decode(n_seqs, 1, depth=settings.stream_depth)
        self.bandwidths.append(read_bandwidth(settings.n_threads))
        n_steps, depth = settings.n_stream_steps, settings.stream_depth
        seconds = in_turns(
            self.engines,
            settings.n_repeat,
            lambda engine: sum(engine.decode(n_seqs, n_steps, depth=depth)),
        )
        rates = {name: [n_seqs * n_steps / s for s in each] for name, each in seconds.items()}
        ours = next(engine for engine in self.engines if engine.name == "ggmlpy")
        return Figure(f"{n_seqs} streams", "t/s", rates, _token_bytes(ours, n_seqs, n_steps, depth))


def _token_bytes(ours: EngineProcess, n_seqs: int, n_steps: int, depth: int) -> float:
    """What is read for a token at least, half way through the steps."""
    return ours.step_bytes(n_seqs, depth + (n_steps + 1) // 2) / n_seqs


class FreshProcesses:
    """The tests that run in a fresh process each time: load and decode."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.bandwidths: list[float] = []
        self._loaded_s: dict[str, list[float]] = {}
        self._peaks: dict[str, list[float]] = {}
        self._surplus: list[float] = []
        self._rates: dict[str, list[float]] = {}
        self._token_bytes: float | None = None
        self.logits_nmse: float | None = None

    def run(self, peer: str | None, backend: str, openvino: str | None = None) -> list[Figure]:
        """Run the engines alternately, after one run of each that fills the page cache."""
        tests = [test for test in ("load", "decode") if test in self.settings.tests]
        if not tests:
            return []
        tell(f"{' and '.join(tests)}, {self.settings.n_repeat} fresh processes each")
        logits: list[Floats] = []
        for engine in started(peer, backend, openvino):
            with engine:
                engine.first_token(self.path, self.settings.n_threads, CONTEXT)
                if engine.name == OPENVINO:
                    check_choice(self.path, logits[0], choice_of(engine, self.settings.n_prompt))
                else:
                    logits.append(logits_of(engine, self.settings.n_prompt))
        self.logits_nmse = check_same(self.path, logits)
        for _ in range(self.settings.n_repeat):
            for engine in started(peer, backend, openvino):
                with engine:
                    self._measure(engine)
            self.bandwidths.append(read_bandwidth(self.settings.n_threads))
        figures = []
        if "decode" in tests:
            figures.append(Figure("decode", "t/s", self._rates, self._token_bytes))
        if "load" in tests:
            figures += [
                Figure("load to first token", "s", self._loaded_s),
                Figure("peak resident", "MB", self._peaks),
                Figure("peak / (file + cache + graphs)", "x", {"ggmlpy": self._surplus}),
            ]
        return figures

    def _measure(self, engine: EngineProcess) -> None:
        settings = self.settings
        loaded_s = engine.first_token(self.path, settings.n_threads, CONTEXT)
        engine.prompt(min(settings.n_prompt, CONTEXT))
        memory = engine.resident_bytes()
        self._loaded_s.setdefault(engine.name, []).append(loaded_s)
        self._peaks.setdefault(engine.name, []).append(memory["peak"] / 1e6)
        is_ours = engine.name == "ggmlpy"
        if is_ours:
            needed = self.path.stat().st_size + memory["cache"] + memory["compute"]
            self._surplus.append(memory["peak"] / needed)
        if "decode" in settings.tests:
            engine.open(settings.n_decode)
            engine.decode(1, 1)
            seconds = sum(engine.decode(1, settings.n_decode))
            self._rates.setdefault(engine.name, []).append(settings.n_decode / seconds)
            if is_ours:
                self._token_bytes = _token_bytes(engine, 1, settings.n_decode, 0)


def readable(openvino: str | None, path: Path, n_threads: int) -> tuple[str | None, str]:
    """That interpreter if OpenVINO can load the file in it; otherwise None, and what it says."""
    if openvino is None:
        return None, ""
    with EngineProcess.openvino(openvino) as engine:
        try:
            engine.load(path, n_threads)
        except EngineError as error:
            return None, f"no figures of OpenVINO, which cannot read {path.name}: {error}"
    return openvino, ""


def started(peer: str | None, backend: str, openvino: str | None = None) -> Iterator[EngineProcess]:
    """The engines, each started when it is asked for."""
    yield EngineProcess.ours(backend)
    if peer is not None:
        yield EngineProcess.peer(peer)
    if openvino is not None:
        yield EngineProcess.openvino(openvino)


# --- showing ------------------------------------------------------------------------------------


def show(title: str, figures: Sequence[Figure], bandwidth: float) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("test")
    has_openvino = any(OPENVINO in f.samples for f in figures)
    more = (OPENVINO, "over it") if has_openvino else ()
    columns = ("ggmlpy", "llama.cpp", "unit", "advantage", *more, "ceiling", "GB/s", "of bandwidth")
    for column in columns:
        table.add_column(column, justify="left" if column == "unit" else "right")
    for f in figures:
        table.add_row(
            f.test,
            rounded(f.median("ggmlpy")),
            rounded(f.median("llama.cpp")),
            f.unit,
            rounded(f.advantage()),
            *([rounded(f.median(OPENVINO)), rounded(f.advantage(OPENVINO))] * has_openvino),
            rounded(bandwidth / f.token_bytes if f.token_bytes else None),
            rounded(f.bytes_read / 1e9 if f.bytes_read else None),
            f"{f.bytes_read / bandwidth:.0%}" if f.bytes_read else "-",
        )
    report.show(table)
    print(f"read bandwidth {bandwidth / 1e9:.1f} GB/s")


def as_entry(figures: Sequence[Figure], bandwidth: float) -> list[dict[str, object]]:
    return [
        asdict(f)
        | {
            "medians": {name: f.median(name) for name in f.samples},
            "advantage": f.advantage(),
            "advantage_over_openvino": f.advantage(OPENVINO),
            "ceiling": bandwidth / f.token_bytes if f.token_bytes else None,
            "bandwidth_share": f.bytes_read / bandwidth if f.bytes_read else None,
        }
        for f in figures
    ]


# --- the command --------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="a Python that has llama-cpp-python; without: ggmlpy alone")
    parser.add_argument("--openvino", help="a Python that has openvino-genai: a second peer")
    parser.add_argument(
        "--model", type=words, default=["Llama-3.2-1B"], metavar="M,M…",
        help=f"files, or shapes: {', '.join(SHAPES)} (Llama-3.2-1B)",
    )  # fmt: skip
    parser.add_argument(
        "--types", type=words, default=words("q4_0,q8_0,q4_K_M,q6_K,f16"), metavar="T,T…",
        help="of shapes (q4_0,q8_0,q4_K_M,q6_K,f16)",
    )  # fmt: skip
    parser.add_argument(
        "--models", type=Path, default=default_folder() / "models", metavar="DIR",
        help="where models are kept (models in the cache folder, $GGMLPY_CACHE_DIR)",
    )  # fmt: skip
    parser.add_argument("--only", type=words, default=list(TESTS), help=",".join(TESTS))
    parser.add_argument("--repeat", type=count, default=3)
    parser.add_argument(
        "--threads", type=count, default=default_n_threads(), help="1 for each core"
    )
    parser.add_argument("--prompt-tokens", type=count, default=512)
    parser.add_argument("--decode-tokens", type=count, default=128)
    parser.add_argument("--streams", type=numbers, default=[8, 32], metavar="N,N…")
    parser.add_argument("--stream-steps", type=count, default=16)
    parser.add_argument("--stream-depth", type=count, default=128)
    parser.add_argument("--backend", default="cpu", help="of ggmlpy")
    parser.add_argument(
        "--save", type=report.results_file, nargs="?", const=RESULTS / "vs_llama_cpp.json",
        metavar="FILE", help="keep the figures (benchmarks/results/vs_llama_cpp.json)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    for name, given, known in (
        ("--only", options.only, TESTS),
        ("--types", options.types, FILE_TYPES),
        ("--model", [m for m in options.model if not Path(m).is_file()], SHAPES),
    ):
        for value in given:
            if value not in known:
                parser.error(f"{name}: there is no {value}, but {', '.join(known)}")
    return options


def model_files(options: argparse.Namespace) -> Iterator[Path]:
    for model in options.model:
        if model in SHAPES:
            for file_type in options.types:
                yield kept_model(options.models, model, file_type, tell)
        else:
            yield Path(model)


def run(path: Path, settings: Settings, options: argparse.Namespace) -> None:
    """Run all tests on one file, show the results, and save them if the options say so."""
    openvino, unread = readable(options.openvino, path, settings.n_threads)
    engines: list[EngineProcess] = []
    try:
        engines.extend(started(options.peer, options.backend, openvino))
        about = about_run(settings.n_threads, engines)
        bench = Bench(path, settings, engines)
        figures = list(bench.run())
        doubts = [*report.warnings_of(about, engines), *([unread] if unread else [])]
    finally:
        for engine in engines:
            engine.close()
    fresh = FreshProcesses(path, settings)
    figures += fresh.run(options.peer, options.backend, openvino)
    bandwidth = statistics.median([*bench.bandwidths, *fresh.bandwidths])
    show(path.name, figures, bandwidth)
    report.warn(doubts)
    if options.save:
        entry = {
            **about,
            "model_bytes": path.stat().st_size,
            "read_bandwidth_gbs": bandwidth / 1e9,
            "logits_nmse": fresh.logits_nmse if bench.logits_nmse is None else bench.logits_nmse,
            "idle_share": {engine.name: engine.idle_share for engine in engines},
            "doubts": doubts,
            "plan": asdict(settings),
            "figures": as_entry(figures, bandwidth),
        }
        save(options.save, path.stem, entry)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = Settings(
        tests=options.only,
        n_repeat=options.repeat,
        n_threads=options.threads,
        n_prompt=options.prompt_tokens,
        n_decode=options.decode_tokens,
        streams=options.streams,
        n_stream_steps=options.stream_steps,
        stream_depth=options.stream_depth,
    )
    try:
        for path in model_files(options):
            run(path, settings, options)
    except (EngineError, GgmlpyError, OSError) as error:
        return report.fail(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
