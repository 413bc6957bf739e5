"""`ggmlpy bench`: prompt processing and decoding, in llama-bench's table."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import options
from ggmlpy.cli.command import command, option
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.cli.options import BenchOptions
from ggmlpy.cli.show import count_text, say, size_text
from ggmlpy.cli.table import Column, Format, Records, Table, rate_text
from ggmlpy.cli.types import Numbers, PromptAndText, ThreadNumbers, Whole
from ggmlpy.common.quoting import printable
from ggmlpy.errors import Unsupported
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.bench.bench import Setup, SpeedResult, SpeedTest
    from ggmlpy.gguf import GGUFFile
    from ggmlpy.models import Model

N_PROMPT, N_GENERATED = 512, 128  # of the tests without -p and -n, as in llama-bench
HOST_BACKENDS = ("cpu", "reference")  # in host memory, whose bandwidth is measured


@command
@options.model_file
@option(
    "prompts",
    "-p --n-prompt N,N…",
    "Tokens of a prompt; 0: no test.",
    type=Numbers(0),
    show_default=f"{N_PROMPT}, or as many as the model can have",
)
@option(
    "generated",
    "-n --n-gen N,N…",
    "Tokens to generate; 0: no test.",
    type=Numbers(0),
    show_default=f"{N_GENERATED}, or as many as the model can have",
)
@option(
    "depths",
    "-d --n-depth N,N…",
    "Tokens that the cache holds before a test.",
    type=Numbers(0),
    default="0",
)
@option(
    "both",
    "-pg PP,TG",
    "Process a prompt and generate, as one test. Can be given several times.",
    type=PromptAndText(),
    multiple=True,
)
@option("n_repeat", "-r --repetitions N", "Times to run each test.", type=Whole(1), default=5)
@option(
    "output",
    "-o --output FORMAT",
    "md, a table; jsonl, as --json; or csv.",
    type=click.Choice(Format),
    default=Format.md,
)
@options.as_json
@option(
    "threads",
    "-t --threads N,N…",
    "CPU threads; every value with every test.",
    type=ThreadNumbers(),
    show_default="one per core",
    section=options.MODEL,
)
@options.bench_options
def bench(
    model: Path | None,
    prompts: list[int] | None,
    generated: list[int] | None,
    depths: list[int],
    both: tuple[tuple[int, int], ...],
    n_repeat: int,
    output: Format,
    as_json: bool,
    threads: list[int] | None,
    machine: BenchOptions,
) -> None:
    """Measure prompt processing and decoding, as llama-bench does.

    pp512 processes a prompt of 512 tokens, tg128 generates 128 tokens one by one, "@ d1024" after
    1024 others. Tokens are random and not sampled. GB/s is what the test reads at least (weights
    and cache), and "of bandwidth" its share of what the memory delivers, which is measured first,
    on one thread per core or on -t threads; "cache" where all of it fits the last-level
    cache, which is faster. Without -t, steps of little work run on one thread; the column of
    threads has the number that a test used. Of a model that generates no text, only prompts are
    measured, with the results of all tokens. Of an encoder-decoder model prompts are encoded, and
    "@ d1024" means a source of 1024 tokens. Lists may have ranges: 128-512+128, 1-8*2.

    Examples:
      ggmlpy bench -m model.gguf
      ggmlpy bench -m model.gguf -p 512 -n 32,128 -d 0,4096 -r 3 --json
    """
    from ggmlpy.gguf import GGUFFile

    tests = _tests(
        [N_PROMPT] if prompts is None else prompts,
        [N_GENERATED] if generated is None else generated,
        depths,
        both,
    )
    shortened = {
        test
        for test in tests
        if (prompts is None and not test.n_generated) or (generated is None and not test.n_prompt)
    }
    setups = [machine.setup(n) for n in threads] if threads else [machine.setup(None)]
    path = model or packaged_model()
    with GGUFFile.open(path) as file:
        report = _Report(path, file, Format.jsonl if as_json else output)
        for setup in setups:
            _run(report, file, setup, tests, shortened, n_repeat)


def _run(
    report: _Report,
    file: GGUFFile,
    setup: Setup,
    tests: list[SpeedTest],
    shortened: Set[SpeedTest],
    n_repeat: int,
) -> None:
    """All tests with one number of threads; some may be shortened to what the model can have."""
    from ggmlpy.bench.bandwidth import read_bandwidth
    from ggmlpy.bench.bench import backends_used, measure_speed, open_context
    from ggmlpy.models import load_model

    with loading(printable(report.path.name)):
        model = load_model(file)
        if not (model.can_generate and model.hparams.is_causal):
            tests = _of_prompts(tests, model)
        elif model.encoder is not None:
            tests = _of_sources(tests, model)
        tests = _as_far_as_it_can(tests, shortened, model)
        n_ctx = max(test.depth + test.n_tokens for test in tests)
        context = open_context(model, setup, n_ctx=n_ctx)
    used = backends_used(context)
    available = None
    if set(used) <= set(HOST_BACKENDS):
        with measuring("measuring the read bandwidth"):
            available = read_bandwidth(setup.threads)
    report.begin(setup, ", ".join(used), available, tests)
    for test in tests:
        with measuring(f"{test.name}, {n_repeat} times"):
            result = measure_speed(context, file, test, n_repeat=n_repeat, n_batch=setup.n_batch)
        report.add(result)


def _tests(
    prompts: list[int],
    generated: list[int],
    depths: list[int],
    both: tuple[tuple[int, int], ...],
) -> list[SpeedTest]:
    """At each depth the prompts, then generation, then both together. Raises BadParameter."""
    from ggmlpy.bench.bench import SpeedTest

    tests = [
        test
        for depth in depths
        for test in (
            *(SpeedTest(n_prompt=n, depth=depth) for n in prompts if n),
            *(SpeedTest(n_generated=n, depth=depth) for n in generated if n),
            *(SpeedTest(n_prompt=pp, n_generated=tg, depth=depth) for pp, tg in both),
        )
    ]
    if not tests:
        raise click.BadParameter("-p and -n are both 0: there is nothing to measure.")
    return tests


def _of_prompts(tests: list[SpeedTest], model: Model) -> list[SpeedTest]:
    """The tests that a model can run which generates no text. Raises Unsupported."""
    kept = [test for test in tests if not test.n_generated and not test.depth]
    gives = "logits" if model.has_logits else "embeddings"
    about = f"a {model.hparams.architecture} model generates no text: only prompts without a depth"
    if not kept:
        raise Unsupported(f"{about} can be measured")
    complain("note", f"{about} are measured, t/s is of tokens whose {gives} are computed")
    return kept


def _of_sources(tests: list[SpeedTest], model: Model) -> list[SpeedTest]:
    """The tests that an encoder-decoder model can run. Raises Unsupported."""
    kept = [test for test in tests if not (test.n_prompt and test.depth)]
    about = f"the {model.hparams.architecture} model encodes prompts: these have no depth"
    if not kept:
        raise Unsupported(f"{about}, with which only -n can be measured")
    if len(kept) < len(tests):
        complain("note", f"{about}; those with one are left out")
    return kept


def _as_far_as_it_can(
    tests: list[SpeedTest], shortened: Set[SpeedTest], model: Model
) -> list[SpeedTest]:
    """The tests, of which some are shortened to the longest sequence of the model."""
    limit = model.n_ctx_limit
    if limit is None:
        return tests
    kept, told = [], []
    for test in tests:
        n = limit - test.depth
        if test in shortened and 0 < n < test.n_tokens:
            shorter = replace(test, **{"n_prompt" if test.n_prompt else "n_generated": n})
            told.append(f"{shorter.name} in place of {test.name}")
            test = shorter
        kept.append(test)
    if told:
        complain(
            "note",
            f"{', '.join(told)}: a {model.hparams.architecture} model of this file can have at most"
            f" {limit} tokens a sequence ({model.limited_by})",
        )
    return kept


class _Report:
    """Writes results: rows of a table, or records."""

    setup: Setup
    backend: str
    available: float | None  # bytes a second
    _cache_bytes: int | None = None

    def __init__(self, path: Path, file: GGUFFile, form: Format) -> None:
        self.path = path
        self._form = form
        self._records = Records(form)
        self._table: Table | None = None
        self.model_type = _model_type(file)
        self.size = sum(t.n_bytes for t in file.tensors.values())
        self.n_params = sum(t.n_elements for t in file.tensors.values())

    def begin(
        self, setup: Setup, backend: str, available: float | None, tests: list[SpeedTest]
    ) -> None:
        """Start the results of a setup. The first call writes the table's head."""
        from ggmlpy.bench.bandwidth import last_level_cache_bytes

        self.setup, self.backend, self.available = setup, backend, available
        if self.available is not None:
            self._cache_bytes = last_level_cache_bytes()
        if self._form is not Format.md:
            return
        if self.available is not None:
            threads = f"{self.setup.threads} thread{'s' * (self.setup.threads > 1)}"
            say(f"read bandwidth of this machine: {self.available / 1e9:.1f} GB/s with {threads}")
        self._table = self._table or Table(
            [
                Column("model", len(self.model_type), "<"),
                Column("size", 9),
                Column("params", 8),
                Column("backend", len(self.backend), "<"),
                Column("threads"),
                Column("test", max(len(test.name) for test in tests)),
                Column("t/s", 20),
                Column("GB/s", 6),
                Column("of bandwidth"),
            ],
            rulers=True,
        )

    def add(self, result: SpeedResult) -> None:
        """A row."""
        if self._table is None:
            self._records.write(self._as_dict(result))
            return
        share = self._share(result)
        unknown = "cache" if result.fits(self._cache_bytes) else "-"
        self._table.row(
            [
                self.model_type,
                size_text(self.size),
                count_text(self.n_params),
                self.backend,
                str(self._n_threads(result)),
                result.test.name,
                f"{rate_text(result.mean_rate)} ± {rate_text(result.rate_deviation)}",
                f"{result.bandwidth / 1e9:.2f}",
                unknown if share is None else f"{share:.0%}",
            ]
        )

    def _n_threads(self, result: SpeedResult) -> int:
        """The number asked for, or else the one that the test used."""
        return self.setup.n_threads or result.n_threads

    def _share(self, result: SpeedResult) -> float | None:
        """Of the bandwidth of memory; None where that is not known, or not what is read from."""
        if self.available is None or result.fits(self._cache_bytes):
            return None
        return result.bandwidth / self.available

    def _as_dict(self, result: SpeedResult) -> dict[str, Any]:
        """A line of JSON, with llama-bench's names where it has the field."""
        setup, test = self.setup, result.test
        return {
            "model_filename": str(self.path),
            "model_type": self.model_type,
            "model_size": self.size,
            "model_n_params": self.n_params,
            "backends": self.backend,
            "n_batch": setup.n_batch,
            "n_ubatch": min(setup.n_ubatch, setup.n_batch),
            "n_threads": self._n_threads(result),
            "type_k": setup.type_k,
            "type_v": setup.type_v,
            "kv_rotation": setup.kv_rotation,  # null: where it is the default
            "flash_attn": setup.flash_attn,
            "n_prompt": test.n_prompt,
            "n_gen": test.n_generated,
            "n_depth": test.depth,
            "avg_ts": result.mean_rate,
            "stddev_ts": result.rate_deviation,
            "samples_ts": result.rates,
            "bandwidth_gbs": result.bandwidth / 1e9,
            "bandwidth_share": self._share(result),
        }


def _model_type(file: GGUFFile) -> str:
    """`llama q4_0`: the architecture, and the type of most bytes."""
    n_bytes: dict[str, int] = {}
    for tensor in file.tensors.values():
        n_bytes[tensor.type.name] = n_bytes.get(tensor.type.name, 0) + tensor.n_bytes
    architecture = printable(file.metadata.str("general.architecture"))
    return f"{architecture} {max(n_bytes, key=lambda name: n_bytes[name])}"
