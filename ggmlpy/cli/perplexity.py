"""`ggmlpy perplexity`: how well a model predicts a text, or chooses answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import command, flag, option
from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.options import MODEL, ChunkOptions
from ggmlpy.cli.show import say, write_json
from ggmlpy.cli.types import FileName, Whole
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.bench.perplexity import Chunks, Estimate
    from ggmlpy.llama import Llama

_N_PARALLEL = 8  # answers that are scored together


@dataclass(frozen=True, slots=True)
class PerplexityOptions(ChunkOptions):
    """How a model is opened to score chunks of a text."""

    n_batch: int = setting(
        2048,
        "-b --batch-size N",
        "Tokens of the chunks that run together.",
        type=Whole(1),
    )


_TASKS = "Tasks with several answers, from -f or -bf"
_KL = "Comparison with another model"


@command
@options.model_file
@options.prompt
@options.prompt_file
@option(
    "binary_file",
    "-bf --binary-file FILE",
    "The file of --multiple-choice.",
    type=FileName(),
)
@options.n_chunks
@option(
    "stride",
    "--ppl-stride N",
    "Score the last N tokens of windows that begin N tokens apart; 0: the second half of each"
    " chunk.",
    default=0,
    type=Whole(0),
)
@option(
    "output_type",
    "--ppl-output-type 0|1",
    "0: the estimates after each chunk, in one line; 1: a line each, with the mean of negative"
    " log-probabilities and its error.",
    default="0",
    type=click.Choice(["0", "1"]),
)
@flag("hellaswag", "--hellaswag", "Accuracy on HellaSwag.", section=_TASKS)
@option(
    "n_hellaswag",
    "--hellaswag-tasks N",
    "Most tasks to run.",
    default=400,
    type=Whole(1),
    section=_TASKS,
)
@flag("winogrande", "--winogrande", "Accuracy on Winogrande.", section=_TASKS)
@option(
    "n_winogrande",
    "--winogrande-tasks N",
    "Most tasks to run; 0: all.",
    default=0,
    type=Whole(0),
    section=_TASKS,
)
@flag("multiple_choice", "--multiple-choice", "Accuracy on multiple choice.", section=_TASKS)
@option(
    "n_choice",
    "--multiple-choice-tasks N",
    "Most tasks to run; 0: all.",
    default=0,
    type=Whole(0),
    section=_TASKS,
)
@flag(
    "kl_divergence",
    "--kl-divergence",
    "Compare with the predictions in the file of --kl-divergence-base.",
    section=_KL,
)
@option(
    "base",
    "--kl-divergence-base --save-all-logits FILE",
    "The file of predictions; without --kl-divergence it is written.",
    type=FileName(),
    section=_KL,
)
@options.as_json
@group(PerplexityOptions, "setup", MODEL)
@adapter_options
def perplexity(
    model: Path | None,
    prompt: str | None,
    file: Path | None,
    binary_file: Path | None,
    n_chunks: int,
    stride: int,
    output_type: str,
    hellaswag: bool,
    n_hellaswag: int,
    winogrande: bool,
    n_winogrande: int,
    multiple_choice: bool,
    n_choice: int,
    kl_divergence: bool,
    base: Path | None,
    as_json: bool,
    setup: PerplexityOptions,
    adapters: AdapterOptions,
) -> None:
    """Measure how well a model predicts a text: its perplexity, as llama-perplexity does.

    The text is cut into chunks of -c tokens, and the second half of each is scored. Estimates and
    results go to stdout, messages to stderr.

    Examples:
      ggmlpy perplexity -m model.gguf -f wiki.test.raw
      ggmlpy perplexity -m model.gguf -f hellaswag_val_full.txt --hellaswag
      ggmlpy perplexity -m f16.gguf -f text.txt --kl-divergence-base f16.logits
      ggmlpy perplexity -m q4_0.gguf --kl-divergence-base f16.logits --kl-divergence
    """
    kinds = [hellaswag, winogrande, multiple_choice, kl_divergence]
    if sum(kinds) > 1:
        raise click.BadParameter(
            "--hellaswag, --winogrande, --multiple-choice and --kl-divergence cannot be used"
            " together."
        )
    if binary_file is not None and not multiple_choice:
        raise click.BadParameter("-bf is the file of --multiple-choice.")
    if any(kinds[:3]) and (base is not None or stride):
        raise click.BadParameter("--kl-divergence-base and --ppl-stride are not of tasks.")
    if stride and base is not None:
        raise click.BadParameter("--ppl-stride and --kl-divergence-base cannot be used together.")
    if base is not None and not kl_divergence:
        common.check_writable(base)
    path, changes = model or packaged_model(), adapters.arguments()
    open_for_chunks = partial(_open_for_chunks, path, setup, changes)
    if kl_divergence:
        if base is None:
            raise click.BadParameter("--kl-divergence needs --kl-divergence-base FILE.")
        from ggmlpy.cli.kl_divergence import show_divergence

        show_divergence(open_for_chunks, base, as_json)
    elif any(kinds):
        from ggmlpy.cli.choices import show_choices

        kind = "hellaswag" if hellaswag else "winogrande" if winogrande else "multiple-choice"
        n_tasks = {"hellaswag": n_hellaswag, "winogrande": n_winogrande}.get(kind, n_choice)
        raw = _read(prompt, file, binary_file)
        open_for_tasks = partial(_open_for_tasks, path, setup, changes)
        show_choices(open_for_tasks, kind, raw, n_tasks, as_json)
    else:
        text = common.read_text(prompt, file)
        if text is None:
            raise click.BadParameter("There is no text: give -f, -p, or a pipe.")
        _show_perplexity(open_for_chunks, setup, text, n_chunks, stride, output_type, base, as_json)


def _read(prompt: str | None, file: Path | None, binary_file: Path | None) -> str | bytes:
    if binary_file is not None:
        return common.read_bytes(binary_file)
    text = common.read_text(prompt, file)
    if text is None:
        raise click.BadParameter("There are no tasks: give -f, -bf, or a pipe.")
    return text


def _open_for_chunks(
    path: Path, setup: PerplexityOptions, changes: dict[str, Any], n_ctx: int, n_seq: int
) -> Llama:
    """For chunks of `n_ctx` tokens, `n_seq` at a time."""
    setup = replace(setup, n_ctx=n_seq * n_ctx)
    return common.open_model(path, setup, n_seq_max=n_seq, **changes)


def _open_for_tasks(path: Path, setup: PerplexityOptions, changes: dict[str, Any]) -> Llama:
    n_each = setup.n_ctx
    setup = replace(setup, n_ctx=_N_PARALLEL * n_each)
    more: dict[str, Any] = {"n_ctx_seq": n_each, "kv_layout": "unified", **changes}
    return common.open_model(path, setup, n_seq_max=_N_PARALLEL, **more)


def _show_perplexity(
    open_for_chunks: Callable[[int, int], Llama],
    setup: PerplexityOptions,
    text: str,
    n_chunks: int,
    stride: int,
    output_type: str,
    base: Path | None,
    as_json: bool,
) -> None:
    from ggmlpy.bench import perplexity as measured

    n_ctx, n_seq = setup.n_ctx, min(256, max(1, setup.n_batch // setup.n_ctx))
    if stride:
        n_ctx = measured.window_length(n_ctx, stride)
        n_seq = 1
    llm = open_for_chunks(n_ctx, n_seq)
    tokens = measured.tokens_of(llm, text)
    if stride:
        chunks = measured.cut_with_stride(tokens, setup.n_ctx, stride, n_chunks)
    else:
        chunks = measured.cut(tokens, n_ctx, n_chunks, measured.bos_of(llm))
    say(
        f"perplexity: calculating perplexity over {len(chunks.tokens)} chunks, n_ctx={n_ctx},"
        f" batch_size={setup.n_batch}, n_seq={n_seq}"
    )
    on_row, writer = None, None
    if base is not None:
        from ggmlpy.bench.kl_divergence import BaseWriter

        unchanged = [tokens[start : start + n_ctx] for start in chunks.starts]
        writer = BaseWriter(base, unchanged, llm.n_vocab())
        on_row = writer.add
    estimates = []
    for estimate in measured.perplexity(llm, chunks, on_row):
        estimates.append(estimate)
        if not as_json:
            _show_estimate(len(estimates), estimate, output_type)
    if writer is not None:
        writer.close()
    last = estimates[-1]
    if as_json:
        write_json(_as_json(llm, chunks, n_ctx, stride, estimates))
        return
    print()
    print(f"Final estimate: PPL = {last.ppl:.4f} +/- {last.ppl_error:.5f}")


def _show_estimate(i: int, estimate: Estimate, output_type: str) -> None:
    if output_type == "0":
        print(f"[{i}]{estimate.ppl:.4f},", end="", flush=True)
    else:
        mean, error = estimate.mean, estimate.mean_error
        print(f"{estimate.start:8d}  {estimate.ppl:.4f}  {mean:4f}  {error:4f}", flush=True)


def _as_json(
    llm: Llama, chunks: Chunks, n_ctx: int, stride: int, estimates: list[Estimate]
) -> dict[str, Any]:
    last = estimates[-1]
    return {
        "model": Path(llm.model_path).name,
        "n_ctx": n_ctx,
        "stride": stride,
        "n_chunks": len(chunks.tokens),
        "n_scored": last.n_tokens,
        "ppl": last.ppl,
        "ppl_error": last.ppl_error,
        "mean_nll": last.mean,
        "mean_nll_error": last.mean_error,
        "ppl_after": [estimate.ppl for estimate in estimates],
    }
