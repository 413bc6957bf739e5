"""The conformance suite on the terminal: its tests, random graphs, and saved failures again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli.loading import loading
from ggmlpy.cli.show import say, write_json
from ggmlpy.cli.table import Column, Table
from ggmlpy.common.quoting import printable

if TYPE_CHECKING:
    from ggmlpy.conformance.suite import ConformanceTest, Result, Subject


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which tests: globs of ops, a pattern of ids."""

    ops: tuple[str, ...]
    pattern: re.Pattern[str] | None

    def has(self, op: str, id: str) -> bool:
        named = not self.ops or any(fnmatchcase(op, glob) for glob in self.ops)
        return named and (self.pattern is None or self.pattern.search(id) is not None)


def subject_of(name: str, seed: int) -> Subject:
    from ggmlpy.backends import get_backend
    from ggmlpy.conformance.suite import Subject

    return Subject(get_backend(name, 1), [get_backend(name, 2)], seed)


class Run:
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
        from ggmlpy.conformance.suite import Result, Status, described, prepare
        from ggmlpy.conformance.table import all_tests

        tests = [test for test in all_tests() if chosen.has(test.op, test.id)]
        if not tests and not n_graphs:
            raise click.BadParameter("no test has such an op and name; --list shows all.")
        if listed:
            for test in tests:
                print(test.id)
            return ""
        try:
            with loading("what the tests need"):
                prepare(self._subject, tests)
        except Exception as error:  # the backend's; its tests can still run
            self._count(Result("prepare", "prepare", Status.FAIL, described(error), 0.0))
        with _progress(len(tests), self._subject.backend.name) as advance:
            for test in tests:
                self._one(test)
                advance()
        different = self._graphs(n_graphs) if n_graphs else ""
        return self._summary(expected_skips) or different

    def _one(self, test: ConformanceTest) -> None:
        from ggmlpy.conformance.suite import Status, run_test

        result = run_test(test, self._subject)
        self._count(result)
        if result.status is Status.FAIL:
            self._shrink(test)

    def _count(self, result: Result) -> None:
        """Show a result, and add it to what the run has."""
        from ggmlpy.conformance.suite import Status

        self._seconds += result.seconds
        self._counts.setdefault(result.op, Counter())[result.status.value] += 1
        if result.status is Status.SKIP:
            self._reasons[_reason(result)] += 1
        if self._as_json:
            write_json({**asdict(result), "status": result.status.value})
        elif result.status is Status.FAIL:
            say(f"FAIL {result.id}", style="bold red")
            say(f"     {result.message}", style="")

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
                path = finding.save(self._folder)
                say(f"     saved: ggmlpy test-ops --backend {backend.name} --replay {path}")
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


def replay_saved(path: Path, backend: str) -> str:
    """Run a saved case or graph again. What failed, as a line; empty if nothing."""
    if path.suffix == ".json":
        name, wrong, then = _graph_again(path, backend)
    else:
        name, wrong, then = _case_again(path, backend)
    print(f"{name}: {printable(wrong) or 'passes'}")
    if then:
        print(f"when it was saved, {printable(then)}")
    return f"{name} fails" if wrong else ""


def _case_again(path: Path, backend: str) -> tuple[str, str, str]:
    """A saved case: its name, what is wrong now, and what was when it was saved."""
    from ggmlpy.conformance.checks import NotSupported, check_node
    from ggmlpy.conformance.replay import load_case
    from ggmlpy.conformance.suite import described

    saved = load_case(path)
    subject = subject_of(backend, saved.seed)
    y = saved.node()
    try:
        wrong = check_node(y, subject.backend, subject.others)
    except NotSupported as reason:
        wrong = f"not supported: {reason}"
    except Exception as error:
        wrong = described(error)
    about = saved.about
    return saved.case.id, wrong, f"{about.get('backend')}: {about.get('message')}"


def _graph_again(path: Path, backend: str) -> tuple[str, str, str]:
    """A saved graph, as _case_again."""
    from ggmlpy.conformance.graphs.many import Checker
    from ggmlpy.conformance.replay import load_graph

    saved = load_graph(path)
    print(saved.program)
    wrong = Checker(subject_of(backend, saved.seed).backend, saved.mode)(saved.program, saved.seed)
    return f"graph {saved.seed} ({saved.mode})", wrong, saved.wrong
