"""`ggmlpy test-ops`: whether a backend computes every op right, how fast, and what it supports."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.command import command, flag, option
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.cli.show import say, write_json
from ggmlpy.cli.table import Column, Table
from ggmlpy.cli.types import Whole
from ggmlpy.common.quoting import printable

if TYPE_CHECKING:
    from ggmlpy.backends.base import Backend
    from ggmlpy.conformance.suite import ConformanceTest, Result, Subject

FAILED_FOLDER = Path("failed-ops")


class Mode(StrEnum):
    """What is done with the table of cases."""

    test = "test"
    perf = "perf"
    support = "support"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which tests: globs of ops, a pattern of ids."""

    ops: tuple[str, ...]
    pattern: re.Pattern[str] | None

    def has(self, op: str, id: str) -> bool:
        named = not self.ops or any(fnmatchcase(op, glob) for glob in self.ops)
        return named and (self.pattern is None or self.pattern.search(id) is not None)


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
@option("model", "-m --model PATH", "The model to compare on.", show_default="the packaged one")
@flag("listed", "--list", "List the tests instead of running them.")
@option("replay", "--replay FILE", "Run a saved case.", type=click.Path(path_type=Path))
@option(
    "folder",
    "--save DIR",
    "Where failing cases are saved.",
    type=click.Path(path_type=Path),
    default=FAILED_FOLDER,
)
@option(
    "expected_skips",
    "--expect-skips N",
    "Fail unless so many tests are skipped.",
    type=Whole(0),
)
@option("output", "-o --output FILE", "Of --mode support.", type=click.Path(path_type=Path))
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
        failed = _replay(replay, backend)
    elif mode is Mode.support:
        failed = _support(chosen, output)
    elif mode is Mode.perf:
        failed = _perf(backend, chosen, as_json)
    else:
        run = _Run(_subject(backend, seed), folder, as_json)
        failed = run.all(chosen, n_graphs, listed, expected_skips)
    if failed:
        complain("error", failed)
        raise SystemExit(1)


def _subject(name: str, seed: int) -> Subject:
    from ggmlpy.backends import get_backend
    from ggmlpy.conformance.suite import Subject

    return Subject(get_backend(name, 1), [get_backend(name, 2)], seed)


class _Run:
    """One run of the suite, shown as it goes."""

    def __init__(self, subject: Subject, folder: Path, as_json: bool) -> None:
        self._subject = subject
        self._folder = folder
        self._as_json = as_json
        self._counts: dict[str, Counter[str]] = {}
        self._reasons: Counter[str] = Counter()
        self._seconds = 0.0

    def all(self, chosen: Chosen, n_graphs: int, listed: bool, expected_skips: int | None) -> str:
        """What failed; empty if nothing. Raises BadParameter if nothing was chosen."""
        from ggmlpy.conformance.suite import prepare
        from ggmlpy.conformance.table import all_tests

        tests = [test for test in all_tests() if chosen.has(test.op, test.id)]
        if not tests and not n_graphs:
            raise click.BadParameter("no test has such an op and name; --list shows all.")
        if listed:
            for test in tests:
                print(test.id)
            return ""
        with loading("what the tests need"):
            prepare(self._subject, tests)
        with _progress(len(tests), self._subject.backend.name) as advance:
            for test in tests:
                self._one(test)
                advance()
        different = self._graphs(n_graphs) if n_graphs else ""
        return self._summary(expected_skips) or different

    def _one(self, test: ConformanceTest) -> None:
        from ggmlpy.conformance.suite import Status, run_test

        result = run_test(test, self._subject)
        self._seconds += result.seconds
        self._counts.setdefault(result.op, Counter())[result.status.value] += 1
        if result.status is Status.SKIP:
            self._reasons[_reason(result)] += 1
        if self._as_json:
            write_json({**asdict(result), "status": result.status.value})
        elif result.status is Status.FAIL:
            say(f"FAIL {result.id}", style="bold red")
            say(f"     {result.message}", style="")
        if result.status is Status.FAIL:
            self._shrink(test)

    def _shrink(self, test: ConformanceTest) -> None:
        """The smallest case that fails, on a line, and in a file."""
        from ggmlpy.conformance.replay import save_case
        from ggmlpy.conformance.suite import CaseTest, shrink_case

        if not isinstance(test, CaseTest):
            return
        s = self._subject
        small, wrong = shrink_case(test.case, s)
        about = {"backend": s.backend.name, "settings": s.backend.settings(), "message": wrong}
        path = save_case(self._folder, small, s.seed, **about)
        say(f"     smallest: {small.id}")
        say(f"     {wrong}")
        say(f"     saved: ggmlpy test-ops --backend {s.backend.name} --replay {path}")

    def _graphs(self, n_graphs: int) -> str:
        from ggmlpy.conformance.graphs.many import ALONE, SPLIT, Checker, check_many

        backend = self._subject.backend
        checkers = [Checker(backend, ALONE), Checker(backend, SPLIT)]
        n_found = 0
        with _progress(n_graphs, "random graphs") as advance:
            first = self._subject.seed * n_graphs
            for finding in check_many(
                checkers, n_graphs=n_graphs, first_seed=first, progress=lambda _: advance()
            ):
                n_found += 1
                say(f"FAIL {finding}", style="")
                say(f"     saved: {finding.save(self._folder)}")
        if self._as_json:
            write_json({"op": "random graphs", "n_graphs": n_graphs, "failed": n_found})
        elif not n_found:
            print(f"{n_graphs} random graphs, alone and split: no difference")
        return f"{n_found} of {n_graphs} random graphs differ" if n_found else ""

    def _summary(self, expected_skips: int | None) -> str:
        total = sum(self._counts.values(), Counter())
        failed, skipped = total["fail"], total["skip"]
        if not self._as_json:
            counted = ("pass", "fail", "skip")
            table = Table([Column("op", 24, "<"), *(Column(name, 6) for name in counted)])
            for op, counts in self._counts.items():
                table.row([op, *(str(counts[name]) for name in counted)])
            for reason, count in self._reasons.most_common():
                print(f"skipped {count}: {reason}")
            print(
                f"{self._subject.backend.name}: {total['pass']} passed, {failed} failed, "
                f"{skipped} skipped in {self._seconds:.1f} s"
            )
        if failed:
            return f"{failed} of {total.total()} tests failed"
        if expected_skips is not None and skipped != expected_skips:
            return f"{skipped} tests were skipped, --expect-skips says {expected_skips}"
        return ""


def _reason(result: Result) -> str:
    """Why a test is skipped, without its shapes."""
    return result.message.partition(" of ")[0]


@contextmanager
def _progress(n: int, what: str) -> Iterator[Any]:
    """A bar on stderr, if that is a terminal."""
    import sys

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from ggmlpy.cli.show import console

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=console(sys.stderr), transient=True,
                     disable=not sys.stderr.isatty())  # fmt: skip
    with shown:
        task = shown.add_task(what, total=n)
        yield lambda: shown.advance(task)


def _replay(path: Path, backend: str) -> str:
    from ggmlpy.conformance.checks import NotSupported, check_node
    from ggmlpy.conformance.replay import load_case
    from ggmlpy.conformance.suite import described

    saved = load_case(path)
    subject = _subject(backend, saved.seed)
    y = saved.node()
    try:
        wrong = check_node(y, subject.backend, subject.others)
    except NotSupported as reason:
        wrong = f"not supported: {reason}"
    except Exception as error:
        wrong = described(error)
    print(f"{saved.case.id}: {printable(wrong) or 'passes'}")
    if then := saved.about.get("message"):
        print(f"when it was saved, {saved.about.get('backend')}: {printable(then)}")
    return f"{saved.case.id} fails" if wrong else ""


def _support(chosen: Chosen, output: Path | None) -> str:
    from ggmlpy.backends import get_backend
    from ggmlpy.conformance.cases import CASES
    from ggmlpy.conformance.support import support_of, support_page

    names = ("reference", "cpu", "mock")
    cases = [case for case in CASES if chosen.has(case.op, case.id)]
    with measuring("building the cases"):
        lines = support_of([get_backend(name) for name in names], cases)
    page = support_page(names, lines)
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
        graph = _graph_of(path, names[0])
        ggmlpy.compute(graph.nodes, backend=names[0])  # views too, which nodes read
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


def _graph_of(path: Path, backend: str) -> Any:
    """The graph of a few tokens of a model, with their inputs."""
    import ggmlpy
    from ggmlpy.models import load_model
    from ggmlpy.runtime.context import Context
    from ggmlpy.sched.compute import backends_for

    context = Context(load_model(ggmlpy.GGUFFile.open(path)), backends_for(backend), n_ctx=64)
    context.decode([1, 5, 9, 13])
    return context.last_graph
