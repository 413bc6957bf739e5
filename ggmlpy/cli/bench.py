"""`ggmlpy bench`: prompt processing and decoding, in llama-bench's table."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggmlpy.cli import options
from ggmlpy.cli.bench_report import Described, Report
from ggmlpy.cli.command import command, option, several
from ggmlpy.cli.guard import complain
from ggmlpy.cli.hub import or_from_hub
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.cli.options import BenchOptions
from ggmlpy.cli.table import FORMATS, Format
from ggmlpy.cli.types import FileNames, Numbers, PromptAndText, ThreadNumbers, Whole
from ggmlpy.common.quoting import printable
from ggmlpy.errors import Unsupported
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.bench.bench import Setup, SpeedTest
    from ggmlpy.gguf import GGUFFile
    from ggmlpy.models import Model

N_PROMPT, N_GENERATED = 512, 128  # of the tests without -p and -n, as in llama-bench
HOST_BACKENDS = ("cpu", "reference")  # in host memory, whose bandwidth is measured


@command
@several(
    "models",
    "-m --model FILE,FILE…",
    "The GGUF files. Of a split model, its first file.",
    type=FileNames(),
    show_default="the small model in the package",
)
@or_from_hub("models", several=True)
@several(
    "prompts",
    "-p --n-prompt N,N…",
    "Tokens of a prompt; 0: no test.",
    type=Numbers(0),
    show_default=f"{N_PROMPT}, or as many as the model can have",
)
@several(
    "generated",
    "-n --n-gen N,N…",
    "Tokens to generate; 0: no test.",
    type=Numbers(0),
    show_default=f"{N_GENERATED}, or as many as the model can have",
)
@several(
    "depths",
    "-d --n-depth N,N…",
    "Tokens that the cache holds before a test.",
    type=Numbers(0),
    default=[0],
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
    FORMATS,
    type=click.Choice(Format),
    default=Format.md,
)
@options.as_json
@several(
    "threads",
    "-t --threads N,N…",
    "CPU threads; every value with every test.",
    type=ThreadNumbers(),
    show_default="one per core",
    section=options.MODEL,
)
@options.bench_grid
def bench(
    models: list[Path],
    prompts: list[int],
    generated: list[int],
    depths: list[int],
    both: tuple[tuple[int, int], ...],
    n_repeat: int,
    output: Format,
    as_json: bool,
    threads: list[int],
    machines: list[BenchOptions],
) -> None:
    """Measure prompt processing and decoding, as llama-bench does.

    pp512 processes a prompt of 512 tokens, tg128 generates 128 tokens one by one, "@ d1024" after
    1024 others. Tokens are random and not sampled. GB/s is what the test reads at least (weights
    and cache), and "of bandwidth" its share of what the memory delivers, which is measured first,
    on one thread per core or on -t threads; "cache" where all of it fits the last-level
    cache, which is faster. Without -t, steps of little work run on one thread; the column of
    threads has the number that a test used. Of a model that generates no text, only prompts are
    measured, with the results of all tokens. Of an encoder-decoder model prompts are encoded, and
    "@ d1024" means a source of 1024 tokens. Lists may have ranges: 128-512+128, 1-8*2; an option
    that takes a list can be given several times too. What has several values is measured in every
    combination.

    Examples:
      ggmlpy bench -m model.gguf
      ggmlpy bench -m model.gguf -p 512 -n 32,128 -d 0,4096 -r 3 --json
      ggmlpy bench -m one.gguf -m two.gguf -ub 128,512 -fa 0,1 -o csv
    """
    from ggmlpy.gguf import GGUFFile

    tests = _tests(prompts or [N_PROMPT], generated or [N_GENERATED], depths, both)
    shortened = {
        test
        for test in tests
        if (not prompts and not test.n_generated) or (not generated and not test.n_prompt)
    }
    counts: list[int | None] = [*threads] or [None]
    setups = [machine.setup(n) for machine in machines for n in counts]
    described = []
    for path in models or [packaged_model()]:
        with GGUFFile.open(path) as file:
            described.append(Described.of(path, file))
    with Report(described, setups, Format.jsonl if as_json else output) as report:
        for model in described:
            with GGUFFile.open(model.path) as file:
                for setup in setups:
                    _run(report, model, file, setup, tests, shortened, n_repeat)


def _run(
    report: Report,
    described: Described,
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

    with loading(printable(described.path.name)):
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
        available = report.bandwidths.get(setup.threads)
        if available is None:
            with measuring("measuring the read bandwidth"):
                available = read_bandwidth(setup.threads)
    report.begin(described, setup, ", ".join(used), available, tests)
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
