"""The process that measures parts of the GPU benchmark, and the one that asks it to.

-> (part, values of an earlier run, seconds)       through a pipe
<- Report(None, …) …, Report("done", …)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from benchmarks.gpu_run import GRACE_S, Report, Values, WorkerEnded
from ggmlpy.errors import AllocationError

START_S = 120.0  # in which a process must have opened the device
END_S = 5.0  # in which it ends by itself when the pipe is closed
_SHOWN_LINES = 12  # of a traceback


class OutOfTime(Exception):
    """The time of a part is over. What it has noted is kept."""


class Broken(Exception):
    """The device does nothing any more; the part is to go on in a new process."""


class NotHere(Exception):
    """A part that this device does not have, or this machine has not what it takes."""


class Notes:
    """The values of a part that is being measured, sent whenever there are more of them.

    before   what an earlier run has measured of it
    values   what there is now, that of the earlier run included
    """

    def __init__(
        self, before: Values, limit_s: float, send: Callable[[Report], None] = lambda report: None
    ) -> None:
        self.values: Values = dict(before)
        self._send = send
        self._end = monotonic() + limit_s

    @property
    def left_s(self) -> float:
        return self._end - monotonic()

    def check_time(self) -> None:
        """Raise OutOfTime if the part is to end."""
        if self.left_s <= 0:
            raise OutOfTime

    def add(self, **values: Any) -> None:
        """Keep some values."""
        self.values.update(values)
        self._send(Report(None, self.values))

    def has_row(self, **keys: Any) -> bool:
        """Whether there is a row of these keys, so that it need not be measured again."""
        rows: list[Values] = self.values.get("rows", [])
        return any(all(row.get(k) == v for k, v in keys.items()) for row in rows)

    def add_row(self, **values: Any) -> None:
        """Keep one more row, and end the part if its time is over."""
        self.add(rows=[*self.values.get("rows", ()), values])
        self.check_time()


Measure = Callable[[Notes], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a worker measures with.

    about       of the device, of versions
    parts       by name
    is_healthy  whether the device still works
    """

    about: Values
    parts: Mapping[str, Measure]
    is_healthy: Callable[[], bool]


OpenBench = Callable[[Any], Bench]


def measured(bench: Bench, name: str, notes: Notes) -> Report:
    """Measure a part. Whatever it raises is told, and ends nothing else."""
    try:
        bench.parts[name](notes)
    except OutOfTime:
        return Report("partial", notes.values)
    except Broken as reason:
        return Report("again", notes.values, str(reason))
    except NotHere as reason:
        return Report("skipped", notes.values, str(reason))
    except AllocationError as error:
        return Report("skipped", notes.values, f"does not fit: {error}")
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-_SHOWN_LINES:]
        text = "\n".join([f"{type(error).__name__}: {error}", *lines])
        return Report("failed", notes.values, text)
    return Report("done", notes.values)


def _serve(connection: Connection, open_bench: OpenBench, settings: Any) -> None:
    """Answer until the pipe is closed. The first answer is what the device is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that asks
    warnings.simplefilter("ignore")  # about contexts and placements that are wanted here
    try:
        bench = open_bench(settings)
    except Exception as error:
        connection.send(Report("failed", {}, f"{type(error).__name__}: {error}"))
        return
    connection.send(Report("done", bench.about))
    with contextlib.suppress(EOFError, ConnectionError):  # the one that asks has ended
        while True:
            name, before, limit_s = connection.recv()
            report = measured(bench, name, Notes(before, limit_s, connection.send))
            connection.send(replace(report, is_healthy=bench.is_healthy()))


class ProcessWorker:
    """A process that has opened the device. `about` is what it has told of it."""

    def __init__(self, open_bench: OpenBench, settings: Any) -> None:
        """Raises WorkerEnded with the reason if the device cannot be used."""
        self._open_bench = open_bench
        self._settings = settings
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self.about: Values = self._start()

    def _start(self) -> Values:
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, self._open_bench, self._settings), daemon=False
        )
        self._process.start()
        theirs.close()
        first = self._receive(START_S, "opening the device")
        if first.status != "done":
            self.close()
            raise WorkerEnded(first.error)
        return first.values

    def measure(
        self, name: str, before: Values, limit_s: float, silence_s: float | None = None
    ) -> Iterator[Report]:
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._connection.send((name, before, limit_s))
        end = monotonic() + limit_s + GRACE_S
        while True:
            left_s = end - monotonic()
            report = self._receive(left_s if silence_s is None else min(left_s, silence_s), name)
            yield report
            if report.status is not None:
                return

    def _receive(self, seconds: float, what: str) -> Report:
        assert self._connection is not None and self._process is not None
        if not self._connection.poll(max(0.0, seconds)):
            raise WorkerEnded(f"{what} did not end in time: its process was ended")
        try:
            report = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join(5.0)
            code = self._process.exitcode
            raise WorkerEnded(f"the process died while {what}, exit code {code}") from None
        assert isinstance(report, Report)
        return report

    def restart(self) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(END_S)
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join(10.0)
        self._process = self._connection = None

    def __enter__(self) -> ProcessWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
