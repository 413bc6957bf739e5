"""Parts of a long benchmark, one after another: within a time, kept in a file, gone on with later.

Each part is measured in a process of its own, which serves many of them. An error of a kernel makes
all later calls of CUDA fail in its process, and a kernel may never end: then the process is ended,
and the next part gets a new one. The file is written after each part, and whenever a part has more
to tell, so that an interruption loses nothing.

    entry of a part    status | values | error | seconds | date | commit
    status             done | partial: time ran out | failed | skipped: not for this device
                       | not reached: no time was left for it
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from benchmarks.report import commit, tell

Values = dict[str, Any]

MARGIN_S = 20.0  # at the end, in which a process that hangs is ended
GRACE_S = 10.0  # that a part may go on for behind its limit, before its process is ended
LIMIT_FACTOR = 4.0  # a part that takes so many times its estimate hangs, or is not worth it
LEAST_LIMIT_S = 60.0
WRITE_S = 1.0  # between two times that the file is written while a part goes on
MAX_AGAIN = 10  # new processes for one part


@dataclass(frozen=True, slots=True)
class Part:
    """Something to measure.

    name        "decode q4_0"
    about       a line for people
    estimate_s  about how long it takes; it is not begun with less time left
    share       of all the time, which it may use instead of a multiple of its estimate
    is_last     it may use the time that is reserved for it
    silence_s   the longest time between two of its reports; longer, and it hangs
    goes_on     after what has ended its process: it knows what it was at, and leaves that out
    """

    name: str
    about: str
    estimate_s: float
    share: float | None = None
    is_last: bool = False
    silence_s: float | None = None
    goes_on: bool = False


class WorkerEnded(Exception):
    """The process that measures has died, or was ended because it did not answer."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker tells of a part. `status` is None while it goes on, "again" if it must go on in
    a new process."""

    status: str | None
    values: Values
    error: str = ""
    is_healthy: bool = True  # whether the process can measure another part


class Worker(Protocol):
    """What measures parts, in a process that can be replaced."""

    def measure(
        self, name: str, before: Values, limit_s: float, silence_s: float | None = None
    ) -> Iterator[Report]:
        """Measure a part, and go on from the values of an earlier run. The part is to end after
        `limit_s`. The last report has a status. Raises WorkerEnded."""

    def restart(self) -> None:
        """End the process, if there is one; the next part gets a new one."""


# --- the file -----------------------------------------------------------------------------------


class Results:
    """The results of one device, in a JSON file that is replaced as a whole."""

    def __init__(self, path: Path, about: Values, settings: Values, resume: bool = False) -> None:
        """With `resume` what an older file of that name holds is kept; without, it is replaced with
        the first part. Raises ValueError for a file of another device or of other settings."""
        self.path = path
        self.about = about
        self.settings = settings
        self.parts: dict[str, Values] = {}
        self._commit = commit()
        if resume and path.exists():
            self._take_over(json.loads(path.read_text(encoding="utf-8")))

    def _take_over(self, found: Values) -> None:
        name, here = found["about"]["device"], self.about["device"]
        if name != here:
            raise ValueError(f"{self.path.name} is of {name}, this is {here}")
        if found["settings"] != self.settings:
            raise ValueError(
                f"{self.path.name} was measured with other settings, {found['settings']}: run all"
                " parts again, or give another --output"
            )
        self.parts = found["parts"]

    def forget(self, names: Sequence[str]) -> None:
        """Let some parts be measured again."""
        for name in names:
            self.parts.pop(name, None)

    def is_done(self, name: str) -> bool:
        return self.parts.get(name, {}).get("status") in ("done", "skipped")

    def values(self, name: str) -> Values:
        """What there is of a part, also of one that was not finished."""
        values: Values = self.parts.get(name, {}).get("values", {})
        return values

    def put(self, name: str, report: Report, seconds: float) -> None:
        """Keep what is known of a part by now. Raises OSError."""
        self.parts[name] = {
            "status": "partial" if report.status in (None, "again") else report.status,
            "values": report.values,
            **({"error": report.error} if report.error else {}),
            "seconds": round(seconds, 2),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": self._commit,
        }
        self.write()

    def put_not_reached(self, name: str) -> None:
        """Note that there was no time for a part; what an earlier run has of it stays."""
        self.parts.setdefault(name, {"values": {}})
        if self.parts[name].get("status") not in ("partial", "failed"):
            self.parts[name]["status"] = "not reached"
        self.write()

    def as_dict(self) -> Values:
        return {"about": self.about, "settings": self.settings, "parts": self.parts}

    def write(self) -> None:
        """Readers see the old file or the whole new one."""
        write_text(self.path, json.dumps(self.as_dict(), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


# --- the run ------------------------------------------------------------------------------------


def chosen(parts: Sequence[Part], globs: Sequence[str]) -> list[Part]:
    """The parts whose names match any of the globs; all without globs."""
    return [p for p in parts if not globs or any(fnmatchcase(p.name, glob) for glob in globs)]


class Runner:
    """Measures parts in order, as far as the time goes.

    total_s   seconds for all of it
    written   is called whenever the results have changed
    """

    def __init__(
        self,
        results: Results,
        worker: Worker,
        total_s: float,
        *,
        written: Callable[[Results], None] = lambda results: None,
        clock: Callable[[], float] = monotonic,
        started_s: float | None = None,
    ) -> None:
        self._results = results
        self._worker = worker
        self._total_s = total_s
        self._written = written
        self._clock = clock
        self._end = (clock() if started_s is None else started_s) + total_s

    def run(self, parts: Sequence[Part]) -> None:
        reserved_s = sum((p.share or 0.0) * self._total_s for p in parts if p.is_last)
        for part in parts:
            if self._results.is_done(part.name):
                tell(f"{part.name}: there already")
                continue
            left_s = self._end - self._clock() - MARGIN_S
            if not part.is_last:
                left_s -= reserved_s
            if left_s < part.estimate_s:
                tell(f"{part.name}: not reached, {max(0.0, left_s):.0f} s are left for it")
                self._results.put_not_reached(part.name)
                self._written(self._results)
                continue
            self._measure(part, min(left_s, self._limit(part)))

    def _limit(self, part: Part) -> float:
        if part.is_last:
            return self._total_s
        if part.share is not None:
            return part.share * self._total_s
        return max(LEAST_LIMIT_S, LIMIT_FACTOR * part.estimate_s)

    def _measure(self, part: Part, limit_s: float) -> None:
        tell(f"{part.name}: {part.about}")
        began = self._clock()
        for _ in range(1 + MAX_AGAIN):
            left_s = limit_s - (self._clock() - began)
            last = self._try(part, left_s, began)
            if not last.is_healthy:
                self._worker.restart()
            if last.status != "again" or left_s < part.estimate_s:
                break
        if last.error:
            tell(f"{part.name}: {last.status}: {last.error.splitlines()[0]}")

    def _try(self, part: Part, limit_s: float, began: float) -> Report:
        """Measure a part until it ends, or its process does. Returns the last report."""
        before = self._results.values(part.name)
        last, written_at = Report(None, before), began
        try:
            for last in self._worker.measure(part.name, before, limit_s, part.silence_s):
                if last.status is not None or self._clock() - written_at >= WRITE_S:
                    written_at = self._clock()
                    self._put(part, last, began)
        except WorkerEnded as error:
            status = "again" if part.goes_on else "failed"
            last = Report(status, last.values, str(error), is_healthy=False)
            self._put(part, last, began)
        return last

    def _put(self, part: Part, report: Report, began: float) -> None:
        self._results.put(part.name, report, self._clock() - began)
        self._written(self._results)
