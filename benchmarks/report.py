"""Reports of benchmarks: the machine, progress, warnings about other load, files of results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from llvmlite.binding import get_host_cpu_name
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.engines import ROOT, EngineProcess

RESULTS = Path(__file__).parent / "results"
BUSY_LOAD = 0.5  # the load average above which the machine is not idle
AWAKE_SHARE = 0.02  # of a core: what an engine that sleeps uses less of

MIN_WIDTH = 110  # of a table, where the output is no terminal

REDRAW_S = 1.0  # between two drawings of a progress bar: each takes a millisecond of a core

_stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def tell(what: str) -> None:
    """A line on stderr: what is measured now."""
    now = datetime.datetime.now().strftime("%H:%M:%S")
    _stderr.print(f"[dim]{now}[/dim] ", end="")
    _stderr.print(what, markup=False)


@contextmanager
def progress(what: str, n_total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while something is measured, if that is a terminal; it is gone afterwards.

    Yields a function that counts some more as done. It draws at most every REDRAW_S, in the thread
    that calls it: nothing runs beside a measurement.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns, TimeRemainingColumn(), console=_stderr, transient=True, auto_refresh=False,
        disable=not _stderr.is_terminal,
    )  # fmt: skip
    drawn_at = monotonic()

    def advance(n: int) -> None:
        nonlocal drawn_at
        bar.advance(task, n)
        if monotonic() - drawn_at >= REDRAW_S:
            bar.refresh()
            drawn_at = monotonic()

    with bar:
        task = bar.add_task(what, total=n_total)
        yield advance


def about_run(threads: int, engines: Sequence[EngineProcess]) -> dict[str, Any]:
    """Date, machine, versions, command and environment, to stand beside the figures."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": threads,
        "python": platform.python_version(),
        "commit": commit(),
        "command": command(sys.argv),
        "environment": environment(),
        "engines": [engine.about for engine in engines],
    }


def cpu_name() -> str:
    """`AMD EPYC (znver4)`: what the system calls the CPU, and what compilers call it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} ({get_host_cpu_name()})"


def commit() -> str | None:
    """The commit that is checked out, with a + where files differ from it; None without git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def command(arguments: Sequence[str]) -> str:
    """What was typed; of files elsewhere only the names, since others have them elsewhere."""
    return "python " + shlex.join(_without_folder(part) for part in arguments)


def _without_folder(part: str) -> str:
    option, equals, value = part.rpartition("=")
    return f"{option}{equals}{','.join(map(_short, value.split(',')))}"


def _short(value: str) -> str:
    path = Path(value)
    if not path.is_absolute():
        return value
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def environment() -> dict[str, str]:
    """The variables that change what ggmlpy does, without the folder of its cache, which others
    have elsewhere."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("GGMLPY_") and name != "GGMLPY_CACHE_DIR"
    }


def warnings_of(about: dict[str, Any], engines: Sequence[EngineProcess]) -> list[str]:
    """What makes the figures doubtful."""
    doubts = []
    load = about["load_before"]
    if load is not None and load > BUSY_LOAD:
        doubts.append(f"the machine was not quiet: its load was {load:.2f} at the start")
    doubts += [
        f"{engine.name} used {engine.idle_share:.0%} of a core while it should have slept"
        for engine in engines
        if engine.idle_share > AWAKE_SHARE
    ]
    return doubts


def warn(texts: Sequence[str]) -> None:
    for text in texts:
        _stderr.print(f"warning: {text}", style="yellow", markup=False)


def show(table: Table) -> None:
    console = Console()
    Console(width=None if console.is_terminal else MIN_WIDTH).print(table)


def fail(error: Exception) -> int:
    """Say in one line what went wrong; the exit code for it."""
    _stderr.print(f"error: {error}", style="red", markup=False)
    return 1


def words(text: str) -> list[str]:
    """`a,b` as a list."""
    return [part for part in text.split(",") if part]


def numbers(text: str) -> list[int]:
    """`8,32` as a list, of an option; not negative."""
    return _numbers(text, 0)


def counts(text: str) -> list[int]:
    """`1,8` as a list, of an option; all of at least 1."""
    return _numbers(text, 1)


def _numbers(text: str, least: int) -> list[int]:
    values = [int(part) if part.strip().isdecimal() else -1 for part in words(text)]
    if not values or min(values) < least:
        raise ArgumentTypeError(
            f"{text!r} must be whole numbers of at least {least}, separated by commas"
        )
    return values


def count(text: str) -> int:
    """A number of at least 1, of an option."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def results_file(text: str) -> Path:
    """A file to save results in, of an option. Its folder must be there, before hours are spent on
    measuring."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def model_file(text: str) -> Path:
    """A file that is there, of an option."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"there is no file {path}")
    return path


def counted(n: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def rounded(value: float | None) -> str:
    """Three digits or more; - for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


def save(path: Path, key: str, entry: dict[str, Any]) -> None:
    """Put an entry into a file of results, in place of the one of that key.

    Raises OSError, and ValueError for a file that holds something else.
    """
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries[key] = entry
    text = json.dumps(dict(sorted(entries.items())), indent=1)
    path.write_text(text + "\n", encoding="utf-8")
