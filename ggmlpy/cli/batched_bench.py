"""`ggmlpy batched-bench`: many sequences at a time, in llama-batched-bench's columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import options
from ggmlpy.cli.command import command, flag, option
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.cli.options import BenchOptions
from ggmlpy.cli.show import say
from ggmlpy.cli.table import FORMATS, Column, Format, Records, Table, rate_text
from ggmlpy.cli.types import Numbers, Whole
from ggmlpy.common.quoting import printable
from ggmlpy.errors import ArgumentError, Unsupported
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.bench.bench import BatchedCase, BatchedResult, Setup
    from ggmlpy.memory.layouts import KVLayout
    from ggmlpy.memory.sizes import Sizes
    from ggmlpy.runtime.context import Context

COLUMNS = [
    Column("PP", 5),
    Column("TG", 6),
    Column("B", 4),
    Column("N_KV", 6),
    *(Column(title, 8) for title in ("T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")),
]


@command
@options.model_file
@option(
    "prompts",
    "-npp N,N…",
    "Tokens of each prompt; every value with every other.",
    type=Numbers(1),
    default="128,512",
)
@option(
    "generated",
    "-ntg N,N…",
    "Tokens that each sequence then generates.",
    type=Numbers(0),
    default="32",
)
@option("sequences", "-npl N,N…", "Sequences at a time.", type=Numbers(1), default="1,2,4,8,16,32")
@flag("shared", "-pps", "All sequences have the same prompt: it is run once.")
@flag("separate", "-tgs", "The sequences generate one after the other, not together.")
@option(
    "output",
    "--output-format FORMAT",
    FORMATS,
    type=click.Choice(Format),
    default=Format.md,
)
@options.as_json
@option(
    "n_ctx",
    "-c --ctx-size N",
    "Tokens that fit in the context, of all sequences together; 0: as many as the largest case"
    " needs.",
    type=Whole(0),
    default=0,
    section=options.MODEL,
)
@options.kv_unified
@options.kv_layout
@options.n_threads
@options.bench_options
def batched_bench(
    model: Path | None,
    prompts: list[int],
    generated: list[int],
    sequences: list[int],
    shared: bool,
    separate: bool,
    output: Format,
    as_json: bool,
    n_ctx: int,
    kv_unified: bool,
    kv_layout: str | None,
    n_threads: int | None,
    machine: BenchOptions,
) -> None:
    """Measure prompt processing and decoding of many sequences, as llama-batched-bench does.

    B sequences have prompts of PP tokens and generate TG tokens, which takes N_KV tokens of cache.
    T is the time, S the speed: of the prompts, of decoding (one token of every sequence per step),
    of both. Tokens are random and not sampled. A case with new shapes runs twice, and the first
    run, which builds their graphs, does not count. A case that does not fit the context is
    skipped with a warning. Lists may have ranges: 128-512+128, 1-32*2.

    Examples:
      ggmlpy batched-bench -m model.gguf -npp 128,512 -ntg 32 -npl 1,8,32
      ggmlpy batched-bench -m model.gguf -npl 1-32*2 -pps --kv-layout paged --json
    """
    from ggmlpy.bench.bench import BatchedCase, measure_batched, open_context
    from ggmlpy.gguf import GGUFFile
    from ggmlpy.memory.layouts import choose_layout
    from ggmlpy.models import load_model

    cases = [
        BatchedCase(pp, tg, pl, shared, separate)
        for pp in prompts
        for tg in generated
        for pl in sequences
    ]
    n_seq_max = max(case.n_seqs for case in cases)
    layout = choose_layout(kv_layout, kv_unified)
    if layout == "split":
        _check_parts(n_ctx, n_seq_max)
    setup = machine.setup(n_threads)
    path = model or packaged_model()
    with GGUFFile.open(path) as file:
        with loading(printable(path.name)):
            context = open_context(
                load_model(file),
                setup,
                n_ctx=n_ctx or max(_n_ctx(case, layout, n_seq_max) for case in cases),
                n_seq_max=n_seq_max,
                kv_layout=layout,
            )
        if not context.can_generate and any(generated):
            raise Unsupported(
                f"a {context.model.hparams.architecture} model generates no text: -ntg 0 measures"
                " prompts"
            )
        if context.encoder is not None:
            raise Unsupported(
                f"sequences of a {context.model.hparams.architecture} model have sources, which"
                " batched-bench does not measure: use bench"
            )
        form = Format.jsonl if as_json else output
        if form is Format.md:
            say(_about(context, setup))
        fitting = _that_fit(cases, context.sizes)
        table = Table(COLUMNS) if form is Format.md else None
        with Records(form, "batched_bench") as records:
            for i, case in enumerate(fitting, 1):
                with measuring(f"{_name(case)}: {i} of {len(fitting)}"):
                    result = measure_batched(context, case, n_batch=setup.n_batch)
                if table is None:
                    records.write(_as_dict(result, context, setup))
                else:
                    table.row(_cells(result))


def _check_parts(n_ctx: int, n_seq_max: int) -> None:
    """Raise BadParameter where the sequences cannot have equal parts of the context."""
    surplus = n_ctx % n_seq_max
    if surplus and n_ctx > n_seq_max:
        must = (
            f"{n_seq_max} sequences cannot have equal parts of {n_ctx} tokens: set it to"
            f" {n_ctx - surplus} or {n_ctx + n_seq_max - surplus}, or -kvu to share them."
        )
        raise click.BadParameter(must, param_hint="'-c'")


def _n_ctx(case: BatchedCase, layout: KVLayout, n_seq_max: int) -> int:
    """The context size that a case needs in a layout of the cache."""
    from ggmlpy.memory.pages import page_size

    return case.n_ctx(layout != "split", n_seq_max, page_size() if layout == "paged" else 1)


def _that_fit(cases: list[BatchedCase], sizes: Sizes) -> list[BatchedCase]:
    """The cases that fit the context; a warning for each of the others. Raises ArgumentError."""
    fitting = []
    for case in cases:
        misfit = case.misfit(sizes)
        if misfit is None:
            fitting.append(case)
        else:
            complain("warning", f"{_name(case)} is skipped: it needs {misfit}")
    if not fitting:
        needed = sorted(_n_ctx(case, sizes.layout, sizes.n_seq_max) for case in cases)
        shared = (
            "" if sizes.one_stream else f" ({min(case.n_kv(True) for case in cases)} with -kvu)"
        )
        raise ArgumentError(
            f"n_ctx is {sizes.n_ctx}: none of the cases fits; the smallest needs -c {needed[0]}"
            f"{shared}, all of them -c {needed[-1]}, which it is without -c"
        )
    return fitting


def _about(context: Context, setup: Setup) -> str:
    """The context's sizes, on one line."""
    from ggmlpy.bench.bench import backends_used

    sizes = context.sizes
    split = "shared by" if sizes.one_stream else f"{sizes.n_ctx_seq} for each of"
    return (
        f"{sizes.n_ctx} tokens of context, {split} {sizes.n_seq_max} sequences;"
        f" batches of {setup.n_batch}, ubatches of {sizes.n_ubatch};"
        f" K/V {setup.type_k}/{setup.type_v}; {', '.join(backends_used(context))}"
    )


def _name(case: BatchedCase) -> str:
    return f"PP {case.n_prompt}, TG {case.n_generated}, B {case.n_seqs}"


def _cells(result: BatchedResult) -> list[str]:
    case = result.case
    counts = (case.n_prompt, case.n_generated, case.n_seqs, result.n_kv)
    speeds = (
        (result.prompt_s, result.prompt_rate),
        (result.generation_s, result.generation_rate),
        (result.total_s, result.rate),
    )
    return [*map(str, counts), *(t for s, rate in speeds for t in (f"{s:.3f}", rate_text(rate)))]


def _as_dict(result: BatchedResult, context: Context, setup: Setup) -> dict[str, Any]:
    """A line of JSON, with llama-batched-bench's names where it has the field."""
    from ggmlpy.bench.bench import backends_used

    case, sizes = result.case, context.sizes
    return {
        "n_kv_max": sizes.n_ctx,
        "n_batch": setup.n_batch,
        "n_ubatch": sizes.n_ubatch,
        "n_threads": setup.threads,
        "backends": ", ".join(backends_used(context)),
        "type_k": setup.type_k,
        "type_v": setup.type_v,
        "flash_attn": setup.flash_attn,
        "kv_unified": sizes.layout == "unified",
        "kv_layout": sizes.layout,
        "is_pp_shared": case.shared,
        "is_tg_separate": case.separate,
        "pp": case.n_prompt,
        "tg": case.n_generated,
        "pl": case.n_seqs,
        "n_kv": result.n_kv,
        "t_pp": result.prompt_s,
        "speed_pp": result.prompt_rate,
        "t_tg": result.generation_s,
        "speed_tg": result.generation_rate,
        "t": result.total_s,
        "speed": result.rate,
    }
