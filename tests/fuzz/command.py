"""The command line: options, counts as they come, a table at the end."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.fuzz.case import Kind
from tests.fuzz.isolate import own_folder
from tests.fuzz.kernels import compile_kernels
from tests.fuzz.run import Run, Tally, replay

CORPUS = Path(__file__).parent / "corpus"
INTERRUPTED = 130
_EVERY_S = 15.0  # a line, where there is no terminal to draw on

_TELLS = """\
Each case is drawn from a seed and its number, runs in a process of its own with limits of memory
and time, and ends well, or with one of ggmlpy's errors on one line, or as a finding: any other
exception or warning, a signal, too much time or memory, a result that differs.

A finding is shrunk and saved as a small JSON file, by default in tests/fuzz/corpus, whose files
pytest replays: mend the cause, and commit the file as the test of it.

  python -m tests.fuzz --minutes 10                   ten minutes of everything
  python -m tests.fuzz --minutes 60 --only gguf       an hour of damaged files
  python -m tests.fuzz --only graphs --cases 500 --seed 7   the same 500 graphs every time
  python -m tests.fuzz --quick                        what CI runs: a fixed number of each kind
  python -m tests.fuzz --replay tests/fuzz/corpus/gguf/some-case.json

The first run compiles all kernels, which takes minutes. Needs what `pip install -e '.[dev]'` does.

Exit status: 0 without findings, 1 with, 2 for a wrong command line, 130 after Ctrl-C.
"""


def main(kinds: Sequence[Kind], arguments: Sequence[str] | None = None) -> None:
    """Run what the arguments ask for, and exit."""
    if not sys.platform.startswith("linux"):
        sys.exit("the fuzzer needs Linux: it forks, and limits what children may take")
    by_name = {kind.name: kind for kind in kinds}
    options = _options(by_name, arguments)
    if options.tell:
        for kind in kinds:
            print(f"{kind.name:12}{kind.about}")
        sys.exit(0)
    chosen = [by_name[name] for name in options.only or by_name]
    try:
        with own_folder():
            if any(kind.needs_kernels for kind in chosen):
                compile_kernels()
            if options.replay:
                sys.exit(_replay(by_name, options.replay))
            sys.exit(_run(_planned(chosen, options)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _planned(chosen: Sequence[Kind], options: _Options) -> Run:
    n_cases = None
    if options.quick or options.cases:
        n_cases = {kind.name: options.cases or kind.n_quick for kind in chosen}
    return Run(
        chosen,
        seed=str(options.seed),
        n_jobs=options.jobs,
        n_cases=n_cases,
        seconds=float("inf") if n_cases and options.minutes is None else 60 * options.minutes_or_1,
        out=options.out,
    )


class _Options(argparse.Namespace):
    seed: int
    jobs: int
    cases: int | None
    minutes: float | None
    only: list[str] | None
    quick: bool
    tell: bool
    replay: list[Path]
    out: Path

    @property
    def minutes_or_1(self) -> float:
        return 1.0 if self.minutes is None else self.minutes


def _options(kinds: dict[str, Kind], arguments: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Tries to break ggmlpy with inputs drawn at random.",
        epilog=_TELLS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--minutes", type=_above_0(float), metavar="N", help="how long (default: 1)")
    add("--cases", type=_above_0(int), metavar="N", help="so many of each kind, not so long")
    add("--quick", action="store_true", help="a fixed number of each kind, about a minute's work")
    add("--only", action="append", choices=kinds, metavar="KIND", help="may be given several times")
    add("--seed", type=int, default=1, metavar="N", help="other cases for another one (default: 1)")
    jobs = os.cpu_count() or 1
    add("--jobs", type=_above_0(int), default=jobs, metavar="N", help=f"default: {jobs}, the cores")
    add("--out", type=Path, default=CORPUS, metavar="DIR", help="where findings are saved")
    add("--list", dest="tell", action="store_true", help="tell which kinds there are")
    add("--replay", type=_existing, nargs="+", default=[], metavar="FILE", help="or folders")
    return parser.parse_args(arguments, _Options())


class _Number(Protocol):
    def __call__(self, text: str, /) -> float: ...


def _above_0(type_: _Number) -> _Number:
    def number(text: str) -> float:
        value = type_(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    number.__name__ = "number"
    return number


def _existing(text: str) -> Path:
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"there is no {text}")
    return Path(text)


def _replay(kinds: dict[str, Kind], paths: Sequence[Path]) -> int:
    """A line for each file, which begins with what came of it."""
    found = False
    for path, outcome in replay(kinds, paths):
        found |= outcome.status == "finding"
        message = " ".join(outcome.message.split())
        told = f": {outcome.what} in {outcome.where}: {message}" if outcome.what else ""
        print(f"{outcome.status} {path}{told}", flush=True)
    return int(found)


def _run(run: Run) -> int:
    console = Console(highlight=False, markup=False, emoji=False)
    stopped = False
    with _shown(run, console) as show, closing(run.events()) as events:
        try:
            for line in events:
                if line:
                    console.print(line, soft_wrap=True)
                show()
        except KeyboardInterrupt:
            stopped = True
            console.print("stopped")
    console.print(_table(run))
    for tally in run.tallies.values():
        for (what, where), (path, n) in tally.findings.items():
            console.print(
                f"{tally.kind.name}: {what} in {where}, {n} times\n  {path}", soft_wrap=True
            )
    if any(tally.findings for tally in run.tallies.values()):
        return 1
    return INTERRUPTED if stopped else 0


class _Show(Protocol):
    def __call__(self) -> None: ...


@contextmanager
def _shown(run: Run, console: Console) -> Iterator[_Show]:
    """What shows the counts so far: a table that is drawn again, or now and then a line.

    No thread draws: processes are forked from this one.
    """
    last_s = time.monotonic()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda: live.update(_table(run), refresh=True)
        return

    def show() -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= _EVERY_S:
            last_s = now_s
            print(_line(run), flush=True)

    yield show


def _line(run: Run) -> str:
    counts = [_count(tally) for tally in run.tallies.values() if tally.n_cases]
    return f"{time.monotonic() - run.begun_s:.0f} s: {', '.join(counts)}"


def _count(tally: Tally) -> str:
    of = "" if tally.n_wanted is None else f" of {tally.n_wanted}"
    findings = f" ({len(tally.findings)} findings)" if tally.findings else ""
    return f"{tally.kind.name} {tally.n_cases}{of}{findings}"


def _table(run: Run) -> Table:
    table = Table(title=f"seed {run.seed}, {time.monotonic() - run.begun_s:.0f} s")
    for name in ("kind", "cases", "ok", "refused", "findings", "of them distinct", "ms a case"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for tally in run.tallies.values():
        statuses = tally.statuses
        counts = [tally.n_cases, statuses["ok"], statuses["refused"], statuses["finding"]]
        ms = f"{1000 * tally.spent_s / tally.n_cases:.1f}" if tally.n_cases else ""
        table.add_row(tally.kind.name, *map(str, [*counts, len(tally.findings)]), ms)
    return table
