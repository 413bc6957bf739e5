"""`ggmlpy batch`: a file of requests, in the form of OpenAI's Batch API."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import argument, command
from ggmlpy.cli.draft_options import DraftOptions, draft_options
from ggmlpy.cli.options import FILE, ModelOptions
from ggmlpy.cli.sampling_options import FRESH_SEED, SamplingOptions
from ggmlpy.cli.serve import check_packages
from ggmlpy.cli.server_options import SharedOptions, shared_options
from ggmlpy.cli.show import console, say
from ggmlpy.errors import FileError
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.llama import Llama
    from ggmlpy.server.batch import Line

N_PARALLEL = 32  # without -np


@command
@argument("requests", "REQUESTS", "The file of requests, JSON lines.", type=FILE)
@argument("answers", "ANSWERS", "The file for the answers.", type=FILE)
@options.model_file
@options.kv_unified
@options.kv_layout
@shared_options
@options.model_options
@options.sampling_options
@draft_options
@adapter_options
def batch(
    requests: Path,
    answers: Path,
    model: Path | None,
    kv_unified: bool,
    kv_layout: str | None,
    shared: SharedOptions,
    setup: ModelOptions,
    sampling: SamplingOptions,
    draft: DraftOptions,
    adapters: AdapterOptions,
) -> None:
    """Run a file of requests, in the form of OpenAI's Batch API, and write the answers.

    A line of REQUESTS has a custom_id, a url such as /v1/chat/completions, and a body. Up to -np
    sequences run together. If ANSWERS has answers already, as after Ctrl-C, only the others are
    run. Requests that cannot be answered get a line with the error.

    Examples:
      ggmlpy batch requests.jsonl answers.jsonl -m model.gguf
      ggmlpy batch requests.jsonl answers.jsonl -m model.gguf -np 64 -c 32768
    """
    check_packages()
    from ggmlpy.server.batch import read_done, read_requests

    lines = list(read_requests(requests))
    done = read_done(answers)
    left = [line for line in lines if line.custom_id not in done]
    if len(left) < len(lines):
        say(f"{len(lines) - len(left)} of {len(lines)} requests have their answers already")
    if not left:
        return
    common.check_writable(answers)
    path = model or packaged_model()
    n_parallel = N_PARALLEL if shared.n_parallel == -1 else shared.n_parallel
    defaults = sampling.as_arguments()
    if defaults["seed"] == FRESH_SEED:
        del defaults["seed"]
    if shared.n_predict > 0:
        defaults["max_tokens"] = shared.n_predict
    llm = common.open_model(
        path,
        setup,
        n_seq_max=n_parallel,
        kv_layout="unified" if kv_unified else kv_layout or "unified",
        cache_ram=shared.cache_mib,
        draft_model=draft.source(),
        **adapters.arguments(),
    )
    started = perf_counter()
    with _opened(answers) as out:
        n_tokens, n_refused = asyncio.run(_run(llm, shared.names(path), left, out, defaults))
    spent = perf_counter() - started
    refused = f", {n_refused} of them refused" if n_refused else ""
    say(
        f"{len(left)} requests answered{refused}: {n_tokens} tokens in {spent:.1f} s,"
        f" {n_tokens / spent:.1f} tokens/s"
    )


def _opened(path: Path) -> IO[str]:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: the file cannot be written: {error.strerror}") from None


async def _run(
    llm: Llama, names: list[str], lines: list[Line], out: IO[str], defaults: dict[str, Any]
) -> tuple[int, int]:
    """Run all requests. Returns how many tokens were generated, and how many were refused."""
    from ggmlpy.server import Hosted, Models, Settings, create_app
    from ggmlpy.server.batch import run_batch

    n = llm.engine.context.sizes.n_seq_max
    settings = Settings(max_waiting=2**30, timeout_s=2.0**30, defaults=defaults)
    hosted = Hosted(names, lambda: llm, settings.max_waiting)
    app = create_app(Models([hosted]), settings)
    n_tokens = n_refused = 0
    bar = Progress(
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("requests", total=len(lines), speed="")
    started = perf_counter()

    def advance(answer: dict[str, Any]) -> None:
        nonlocal n_tokens, n_refused
        response = answer["response"]
        n_refused += response["status_code"] != 200
        usage = (response["body"] or {}).get("usage") or {}
        n_tokens += usage.get("completion_tokens", 0)
        rate = n_tokens / (perf_counter() - started)
        bar.update(task, advance=1, speed=f"{rate:.0f} tokens/s")

    with bar if sys.stderr.isatty() else nullcontext():
        async with app.router.lifespan_context(app):
            # Twice as many as run: prompts are made, and answers written, beside them.
            await run_batch(app, iter(lines), out, at_once=2 * n, advance=advance)
    return n_tokens, n_refused
