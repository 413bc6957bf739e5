"""`ggmlpy batch`: a file of requests, in the form of OpenAI's Batch API."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import argument, command
from ggmlpy.cli.draft_options import DraftOptions, draft_options
from ggmlpy.cli.options import FILE, ModelOptions
from ggmlpy.cli.sampling_options import FRESH_SEED, SamplingOptions
from ggmlpy.cli.serve import check_packages
from ggmlpy.cli.server_options import (
    ClusterOptions,
    SharedOptions,
    cluster_options,
    shared_options,
)
from ggmlpy.cli.show import console, say
from ggmlpy.errors import FileError
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.llama import Llama
    from ggmlpy.server import Settings
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
@cluster_options
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
    cluster: ClusterOptions,
) -> None:
    """Run a file of requests, in the form of OpenAI's Batch API, and write the answers.

    A line of REQUESTS has a custom_id, a url such as /v1/chat/completions, and a body. Up to -np
    sequences run together. If ANSWERS has answers already, as after Ctrl-C, only the others are
    run. Requests that cannot be answered get a line with the error.

    Examples:
      ggmlpy batch requests.jsonl answers.jsonl -m model.gguf
      ggmlpy batch requests.jsonl answers.jsonl -m model.gguf -np 64 -c 32768
      ggmlpy batch requests.jsonl answers.jsonl -m model.gguf --ray --replicas 4
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
    open_model = partial(
        common.open_model,
        path.resolve(),
        setup,
        n_seq_max=n_parallel,
        kv_layout="unified" if kv_unified else kv_layout or "unified",
        cache_ram=shared.cache_mib,
        draft_model=draft.source(),
        **adapters.arguments(),
    )
    names = shared.names(path)
    with _opened(answers) as out:
        progress = _Progress(out, len(left))
        if cluster.ray:
            _run_on_ray(left, names, open_model, defaults, cluster, setup, n_parallel, progress)
        else:
            with progress:
                asyncio.run(_run(left, names, open_model(), defaults, progress))
    progress.tell()


class _Progress:
    """Writes answers, and shows how many there are."""

    def __init__(self, out: FileIO, n_requests: int) -> None:
        self._out = out
        self._n_requests = n_requests
        self._n_tokens = 0
        self._n_refused = 0
        self._n_written = 0
        self._started = perf_counter()
        self._bar = Progress(
            TextColumn("requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console(sys.stderr),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("requests", total=n_requests, speed="")

    def __enter__(self) -> Self:
        self._started = perf_counter()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def write(self, answer: dict[str, Any]) -> None:
        """Write the line of an answer, whole or not at all. Raises FileError."""
        line = json.dumps(answer, ensure_ascii=False) + "\n"
        try:
            _write_whole(self._out, line.encode(errors="backslashreplace"))
        except OSError as error:
            raise FileError(
                f"the answers cannot be written: {error.strerror}; {self._n_written} of this run"
                " are whole in the file, behind which the same command goes on"
            ) from None
        self._n_written += 1
        response = answer["response"]
        self._n_refused += response["status_code"] != 200
        self._n_tokens += _n_tokens(response["body"])
        rate = self._n_tokens / (perf_counter() - self._started)
        self._bar.update(self._task, advance=1, speed=f"{rate:.0f} tokens/s")

    def tell(self) -> None:
        """What was done."""
        spent = perf_counter() - self._started
        refused = f", {self._n_refused} of them refused" if self._n_refused else ""
        say(
            f"{self._n_requests} requests answered{refused}: {self._n_tokens} tokens in"
            f" {spent:.1f} s, {self._n_tokens / spent:.1f} tokens/s"
        )


def _n_tokens(body: Any) -> int:
    """Of an answer, as its API counts them: /embedding has a list, and no count."""
    found = body.get("usage") if isinstance(body, dict) else None
    usage: dict[str, int] = found if isinstance(found, dict) else {}
    return usage.get("completion_tokens", usage.get("output_tokens", 0))


def _opened(path: Path) -> FileIO:
    try:
        return FileIO(path, "a")
    except OSError as error:
        raise FileError(f"{path}: the file cannot be written: {error.strerror}") from None


def _write_whole(out: FileIO, line: bytes) -> None:
    """Append a line. Where only its beginning can be written, as on a full disk, that is removed.
    Raises OSError."""
    size, n = os.fstat(out.fileno()).st_size, 0
    try:
        while n < len(line):
            n += out.write(line[n:]) or 0
    except OSError:
        if n:
            with suppress(OSError):  # no file, but a pipe
                out.truncate(size)
        raise


def _settings(defaults: dict[str, Any]) -> Settings:
    from ggmlpy.server import Settings

    return Settings(max_waiting=2**30, timeout_s=2.0**30, max_stored_bytes=0, defaults=defaults)


async def _run(
    lines: list[Line],
    names: list[str],
    llm: Llama,
    defaults: dict[str, Any],
    progress: _Progress,
) -> None:
    """Run all requests with one model."""
    from ggmlpy.server import Hosted, Models, create_app
    from ggmlpy.server.batch import run_batch

    settings = _settings(defaults)
    app = create_app(Models([Hosted(names, lambda: llm, settings.max_waiting)]), settings)
    n = llm.engine.context.sizes.n_seq_max
    async with app.router.lifespan_context(app):
        # Twice as many as run: prompts are made, and answers written, beside them.
        await run_batch(app, iter(lines), progress.write, at_once=2 * n)


def _run_on_ray(
    lines: list[Line],
    names: list[str],
    open_model: partial[Llama],
    defaults: dict[str, Any],
    cluster: ClusterOptions,
    setup: ModelOptions,
    n_parallel: int,
    progress: _Progress,
) -> None:
    """Run all requests with replicas of the model."""
    cluster.connect()
    from ggmlpy.server.cluster.batches import answers

    scale = cluster.scale(setup.n_threads, n_parallel)
    with progress:
        for answer in answers(lines, names, open_model, _settings(defaults), scale):
            progress.write(answer)
