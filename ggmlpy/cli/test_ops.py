"""`ggmlpy test-ops`: whether a backend computes every op right, how fast, and what it supports."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.command import command, flag, option
from ggmlpy.cli.conformance import Chosen, Run, replay_saved, subject_of
from ggmlpy.cli.guard import complain
from ggmlpy.cli.hub import or_from_hub
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.cli.show import say, write_json
from ggmlpy.cli.table import Column, Table
from ggmlpy.cli.types import FileName, Whole
from ggmlpy.common.quoting import printable

if TYPE_CHECKING:
    from ggmlpy.backends.base import Backend

FAILED_FOLDER = Path("failed-ops")


class Mode(StrEnum):
    """What is done with the table of cases."""

    test = "test"
    perf = "perf"
    support = "support"


def _pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}.") from None


@command
@option("backend", "--backend NAME", "A built-in or installed backend.", default="auto")
@option(
    "mode",
    "--mode MODE",
    "test, perf or support.",
    type=click.Choice(Mode),
    default=Mode.test,
)
@option("ops", "--op GLOB", "Only these ops, as mul_mat*. Can be given again.", multiple=True)
@option("pattern", "--filter REGEX", "Only tests whose names match.", callback=_pattern)
@option("seed", "--seed N", "Of the inputs.", type=Whole(0), default=0)
@option("n_graphs", "--graphs N", "Random graphs after the table.", type=Whole(0), default=0)
@option("compared", "--compare A B", "Compare two backends on a model's graph.", nargs=2)
@or_from_hub("model")
@option("model", "-m --model PATH", "The model to compare on.", show_default="the packaged one")
@flag("listed", "--list", "List the tests instead of running them.")
@option("replay", "--replay FILE", "Run a saved case.", type=FileName())
@option(
    "folder",
    "--save DIR",
    "Where failing cases are saved.",
    type=FileName(),
    default=FAILED_FOLDER,
)
@option(
    "expected_skips",
    "--expect-skips N",
    "Fail unless so many tests are skipped.",
    type=Whole(0),
)
@option("output", "-o --output FILE", "Of --mode support.", type=FileName())
@options.as_json
def test_ops(
    backend: str,
    mode: Mode,
    ops: tuple[str, ...],
    pattern: re.Pattern[str] | None,
    seed: int,
    n_graphs: int,
    compared: tuple[str, str] | None,
    model: str | None,
    listed: bool,
    replay: Path | None,
    folder: Path,
    expected_skips: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Test a backend op by op against exact results.

    Every case runs in the backend's own memory between guard bytes, again, on other threads and in
    place; every element must be within the error that the case allows. A failing case is shrunk to
    the smallest shape that fails, shown in one line, and saved for --replay. The exit code is 1 if
    a test fails.

    --mode perf measures ops of the shapes of models beside what memory and numpy's product deliver;
    what fits the caches may exceed the former. --mode support writes which ops the built-in
    backends support. --compare A B runs a model on A, and each node again on B over what it read.

    Examples:
      ggmlpy test-ops --backend cpu
      ggmlpy test-ops --op 'mul_mat*' --filter q4_0 --seed 7
      ggmlpy test-ops --backend mine --graphs 1000 --json
      ggmlpy test-ops --replay failed-ops/add_f32_5_7_11_13_.npz --backend mine
      ggmlpy test-ops --compare cpu reference -m model.gguf
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products, which threads slow down
    chosen = Chosen(ops, pattern)
    if model is not None and compared is None:
        raise click.BadParameter("-m is the model to compare backends on: give --compare A B too.")
    if output is not None and mode is not Mode.support:
        raise click.BadParameter("-o is for the page that --mode support writes.")
    if compared is not None:
        failed = _compare(compared, model)
    elif replay is not None:
        failed = replay_saved(replay, backend)
    elif mode is Mode.support:
        failed = _support(chosen, output)
    elif mode is Mode.perf:
        failed = _perf(backend, chosen, as_json)
    else:
        run = Run(subject_of(backend, seed), folder, as_json)
        failed = run.all(chosen, n_graphs, listed, expected_skips)
    if failed:
        complain("error", failed)
        raise SystemExit(1)


def _support(chosen: Chosen, output: Path | None) -> str:
    from ggmlpy.backends import get_backend
    from ggmlpy.backends.cuda.kernel import KernelTable
    from ggmlpy.conformance.cases import CASES
    from ggmlpy.conformance.support import Supports, support_of, support_page

    backends: list[Supports] = [*map(get_backend, ("reference", "cpu", "mock")), KernelTable()]
    cases = [case for case in CASES if chosen.has(case.op, case.id)]
    with measuring("building the cases"):
        lines = support_of(backends, cases)
    page = support_page([backend.name for backend in backends], lines)
    if output is None:
        print(page, end="")
    else:
        common.write_file(output, page)
    return ""


def _perf(name: str, chosen: Chosen, as_json: bool) -> str:
    from ggmlpy.backends import get_backend
    from ggmlpy.backends.cpu.cores import default_n_threads
    from ggmlpy.bench.bandwidth import read_bandwidth
    from ggmlpy.conformance.perf import CASES, ceilings, measure

    backend = get_backend(name)
    n_threads = default_n_threads()
    with measuring("measuring the machine"):
        machine = ceilings(n_threads, read_bandwidth(n_threads))
    if not as_json:
        print(f"{backend.name}: {backend.settings()}")
        print(f"memory delivers {machine.bytes_per_s / 1e9:.1f} GB/s, "
              f"numpy's f32 product {machine.flops / 1e9:.0f} GFLOP/s")  # fmt: skip
        table = Table([Column("case", 66, "<"), *(Column(n, 9) for n in _PERF_COLUMNS)])
    for case in CASES:
        if not chosen.has(case.op, case.id):
            continue
        speed = measure(backend, case, machine)
        if isinstance(speed, str):
            say(f"{case.id}: {speed}")
        elif as_json:
            write_json({**asdict(speed), "backend": backend.name})
        else:
            table.row(_perf_row(speed))
    return ""


_PERF_COLUMNS = ("us/run", "GB/s", "GFLOP/s", "share of")


def _perf_row(speed: Any) -> Sequence[str]:
    flops = f"{speed.flops / 1e9:.1f}" if speed.flops else ""
    share = f"{speed.share:.0%} {speed.limit}"
    return [speed.id, f"{speed.time_us:.1f}", f"{speed.bytes_per_s / 1e9:.1f}", flops, share]


def _compare(names: tuple[str, str], model: str | None) -> str:
    import ggmlpy
    from ggmlpy.conformance.compare import compare_graph
    from ggmlpy.packaged import packaged_model

    backends = [_one_backend(name) for name in names]
    path = Path(model) if model else packaged_model()
    with loading(printable(path.name)):
        graph = _graph_of(path, backends[0])
        ggmlpy.compute(graph.nodes, backend=backends[0])  # views too, which nodes read
    found = list(compare_graph(graph, backends[0], backends[1]))
    table = Table([Column("node", 24, "<"), Column("op", 40, "<"), Column("NMSE", 9)])
    worst = sorted(found, key=lambda node: (not node.wrong, -node.nmse))
    for node in worst[:10]:
        table.row([node.name[:24], node.op[:40], f"{node.nmse:.1e}"])
    failed = [node for node in found if node.wrong]
    for node in failed:
        say(f"{node.name}: {node.wrong}", style="red")
    skipped = sum(bool(node.skipped) for node in found)
    print(f"{len(found)} nodes: {len(failed)} beyond their bounds, {skipped} not supported")
    return f"{len(failed)} of {len(found)} nodes are beyond their bounds" if failed else ""


def _one_backend(name: str) -> Backend:
    from ggmlpy.backends import get_backend

    return get_backend(name)


def _graph_of(path: Path, backend: Backend) -> Any:
    """The graph of a few tokens of a model, with their inputs."""
    import ggmlpy
    from ggmlpy.models import load_model
    from ggmlpy.runtime.context import Context
    from ggmlpy.sched.compute import backends_for

    context = Context(load_model(ggmlpy.GGUFFile.open(path)), backends_for(backend), n_ctx=64)
    if context.encoder is not None:
        context.encode([1, 5, 9, 13])
    context.decode([1, 5, 9, 13])
    return context.last_graph
