"""`ggmlpy bench`: reading a prompt and writing, in llama-bench's table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggmlpy.cli import options
from ggmlpy.cli.groups import BenchOptions, grouped
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.cli.options import option, whole_numbers
from ggmlpy.cli.show import count_text, printable, say, size_text, write_json
from ggmlpy.cli.table import Column, Format, Table
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.bench import Setup, SpeedResult, SpeedTest
    from ggmlpy.gguf_file import GGUFFile

HOST_BACKENDS = ("cpu", "reference")  # which read the memory whose bandwidth is measured


@grouped
def bench(
    model: options.ModelFile = None,
    prompts: Annotated[
        str, option("-p --n-prompt N,N…", "Tokens of a prompt; 0: no test.")
    ] = "512",
    generated: Annotated[str, option("-n --n-gen N,N…", "Tokens to write; 0: no test.")] = "128",
    depths: Annotated[
        str, option("-d --n-depth N,N…", "Tokens that the cache holds before a test.")
    ] = "0",
    n_repeat: Annotated[
        int, option("-r --repetitions N", "Times to run each test.", check=options.at_least(1))
    ] = 5,
    output: Annotated[
        Format, option("-o --output FORMAT", "md, a table, or jsonl, as --json.")
    ] = Format.md,
    as_json: options.AsJson = False,
    *,
    machine: BenchOptions,
) -> None:
    """Measure how fast a prompt is read and text is written, as llama-bench does.

    pp512 reads a prompt of 512 tokens, tg128 writes 128 one by one, "@ d1024" after 1024 others.
    Tokens are random and not sampled. GB/s is what the test reads at least (weights and cache), the
    share that of all that this machine's memory delivers to as many threads, which is measured
    first. Without -t steps of little work use one thread, as they do anywhere.

    Examples:
      ggmlpy bench -m model.gguf
      ggmlpy bench -m model.gguf -p 512 -n 32,128 -d 0,4096 -r 3 --json
    """
    lists = [
        whole_numbers(text, name, 0)
        for text, name in ((prompts, "-p"), (generated, "-n"), (depths, "-d"))
    ]
    from ggmlpy.bandwidth import read_bandwidth
    from ggmlpy.bench import measure_speed, open_context
    from ggmlpy.gguf_file import GGUFFile

    tests = _tests(*lists)
    setup = machine.setup()
    path = model or packaged_model()
    with GGUFFile.open(path) as file:
        with loading(printable(path.name)):
            context = open_context(
                file, setup, n_ctx=max(test.depth + test.n_tokens for test in tests)
            )
        used = context.backend_names.split(", ")[0]
        available = None
        if used in HOST_BACKENDS:
            with measuring("measuring the read bandwidth"):
                available = read_bandwidth(setup.threads)
        report = _Report(path, file, setup, used, available, as_json or output is Format.jsonl)
        report.begin(tests)
        for test in tests:
            with measuring(f"{test.name}, {n_repeat} times"):
                result = measure_speed(
                    context, file, test, n_repeat=n_repeat, n_batch=setup.n_batch
                )
            report.add(result)


def _tests(prompts: list[int], generated: list[int], depths: list[int]) -> list[SpeedTest]:
    """At each depth the prompts, then what is written. Raises BadParameter if there is nothing."""
    from ggmlpy.bench import SpeedTest

    tests = [
        test
        for depth in depths
        for test in (
            *(SpeedTest(n_prompt=n, depth=depth) for n in prompts if n),
            *(SpeedTest(n_generated=n, depth=depth) for n in generated if n),
        )
    ]
    if not tests:
        raise typer.BadParameter("-p and -n are both 0: there is nothing to measure.")
    return tests


class _Report:
    """Results as they come: rows of a table, or lines of JSON."""

    def __init__(
        self,
        path: Path,
        file: GGUFFile,
        setup: Setup,
        backend: str,
        available: float | None,
        as_json: bool,
    ) -> None:
        self.path = path
        self.setup = setup
        self.backend = backend
        self.available = available  # bytes a second
        self.as_json = as_json
        self.model_type = _model_type(file)
        self.size = sum(t.n_bytes for t in file.tensors.values())
        self.n_params = sum(t.n_elements for t in file.tensors.values())

    def begin(self, tests: list[SpeedTest]) -> None:
        """The table's head."""
        if self.as_json:
            return
        if self.available is not None:
            threads = f"{self.setup.threads} thread{'s' * (self.setup.threads > 1)}"
            say(f"this machine's memory gives {self.available / 1e9:.1f} GB/s to {threads}")
        self._table = Table(
            [
                Column("model", len(self.model_type), "<"),
                Column("size", 9),
                Column("params", 8),
                Column("backend", len(self.backend), "<"),
                Column("threads"),
                Column("test", max(len(test.name) for test in tests)),
                Column("t/s", 18),
                Column("GB/s", 6),
                Column("of bandwidth"),
            ],
            rulers=True,
        )

    def add(self, result: SpeedResult) -> None:
        """A row."""
        if self.as_json:
            write_json(self._as_dict(result))
            return
        share = self._share(result)
        self._table.row(
            [
                self.model_type,
                size_text(self.size),
                count_text(self.n_params),
                self.backend,
                str(self.setup.threads),
                result.test.name,
                f"{result.mean_rate:.2f} ± {result.rate_deviation:.2f}",
                f"{result.bandwidth / 1e9:.2f}",
                "-" if share is None else f"{share:.0%}",
            ]
        )

    def _share(self, result: SpeedResult) -> float | None:
        return None if self.available is None else result.bandwidth / self.available

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
            "n_threads": setup.threads,
            "type_k": setup.type_k,
            "type_v": setup.type_v,
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
