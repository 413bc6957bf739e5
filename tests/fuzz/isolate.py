"""Cases in processes of their own, with limits of memory and time.

    this process  --fork-->  zygote: has made what all cases of a kind share
                  --fork-->  child: runs a group of cases, one after another, and says what came

A zygote is asked over a pipe, a line of JSON a case, and answers in the same order. Whatever a
child dies of is an outcome of the case that it was at; the rest of its group go on in another. A
finding of a child that had run others before is tried again alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import ggmlpy
from ggmlpy.errors import GgmlpyError
from tests.fuzz.case import Kind, Outcome, Recipe, Wrong, check_refusal, to_json

ROOT = Path(ggmlpy.__file__).resolve().parents[1]
_SHM = Path("/dev/shm")  # files in memory
_PR_SET_PDEATHSIG = 1
_LOG = "faults.txt"
_CPU_TIME = signal.SIGXCPU


def attempt(kind: Kind, recipe: Recipe, folder: Path) -> Outcome:
    """Run one case here, or `several`. Warnings are errors, but for those meant for users."""
    outcome = Outcome("ok")
    for i, each in enumerate(recipe.get("several", [recipe])):
        own = folder / str(i)
        own.mkdir()
        outcome = _attempt_one(kind, each, own)
        if outcome.status == "finding":
            break
    return outcome


def _attempt_one(kind: Kind, recipe: Recipe, folder: Path) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for category in _own_warnings():
            warnings.simplefilter("ignore", category)
        try:
            kind.run(recipe, folder)
        except Exception as error:
            return _judged(error)
    return Outcome("ok")


def _own_warnings() -> list[type[Warning]]:
    return [c for c in UserWarning.__subclasses__() if c.__module__.startswith("ggmlpy.")]


def _judged(error: Exception) -> Outcome:
    where = frame_of(error.__traceback__)
    if isinstance(error, GgmlpyError):
        try:
            return Outcome("refused", type(error).__name__, where, check_refusal(error))
        except Wrong as wrong:
            error = wrong
    if isinstance(error, Wrong):
        return Outcome("finding", error.what, where, str(error))
    return Outcome("finding", type(error).__name__, where, _told(error))


def _told(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def frame_of(trace: TracebackType | None) -> str:
    """The innermost function of ggmlpy in a traceback; of the tests if there is none."""
    frames = [_frame(f.filename, f.name) for f in traceback.extract_tb(trace)]
    ours = [frame for frame in frames if frame.startswith("ggmlpy/")]
    return (ours or [frame for frame in frames if frame] or [""])[-1]


def _frame(file: str, function: str) -> str:
    try:
        return f"{Path(file).relative_to(ROOT)}:{function}"
    except ValueError:
        return ""


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """All temporary files of this process and those forked from it go away with the block."""
    before = tempfile.tempdir
    where = _SHM if _SHM.is_dir() else None
    with tempfile.TemporaryDirectory(
        prefix="fuzz-", dir=where, ignore_cleanup_errors=True
    ) as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


# ---- the child


@dataclass(frozen=True, slots=True)
class _Child:
    """A process that runs cases."""

    pid: int
    out: int
    folder: Path

    @classmethod
    def start(cls, kind: Kind, recipes: Sequence[Recipe]) -> _Child:
        folder = Path(tempfile.mkdtemp(prefix="case-"))
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            _be_child(kind, recipes, folder, into)
        os.close(into)
        return cls(pid, out, folder)

    def outcomes(self, limits_s: float) -> Iterator[Outcome]:
        """One for each case that was finished, and one for what ended it before its time."""
        timed_out = False
        pending = b""
        deadline = time.monotonic() + limits_s
        process = os.pidfd_open(self.pid)
        try:
            while True:
                left = max(deadline - time.monotonic(), 0)
                ready, _, _ = select.select([self.out, process], [], [], left)
                if self.out in ready:
                    data = os.read(self.out, 1 << 16)
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        yield Outcome(**json.loads(line))
                        deadline = time.monotonic() + limits_s
                    if data:
                        continue
                if process in ready or self.out in ready:
                    break
                if timed_out:
                    break
                timed_out = True
                deadline = time.monotonic() + 2.0
                os.kill(self.pid, _CPU_TIME)  # tells in the log where it is, and ends it
        finally:
            os.close(process)
            status = self._end()
        if status != 0 or timed_out:
            yield self._death(status, timed_out)

    def _end(self) -> int:
        for end in (os.kill, os.killpg):  # itself, and what it has started
            with contextlib.suppress(ProcessLookupError):
                end(self.pid, signal.SIGKILL)
        os.close(self.out)
        return os.waitpid(self.pid, 0)[1]

    def _death(self, status: int, timed_out: bool) -> Outcome:
        log = (self.folder / _LOG).read_text(errors="replace")
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        what = signal.Signals(number).name if number else f"exit {status >> 8}"
        if timed_out or number == _CPU_TIME:
            what = "time"
        elif number == signal.SIGKILL:
            what = "killed"
        return Outcome("finding", what, _frame_in_log(log), f"the process ended by {what}")

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _frame_in_log(log: str) -> str:
    """The innermost function of ggmlpy in what faulthandler wrote of the thread that was ended."""
    _, _, current = log.rpartition("Current thread")
    frames = [_frame(*found) for found in re.findall(r'File "(.*)", line \d+ in (\S+)', current)]
    ours = [frame for frame in frames if frame.startswith("ggmlpy/")]
    return (ours or [frame for frame in frames if frame] or [""])[0]


def _be_child(kind: Kind, recipes: Sequence[Recipe], folder: Path, into: int) -> None:
    """All that a child does; it never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        os.chdir(folder)
        _silence()
        log = (folder / _LOG).open("w")
        faulthandler.enable(log)
        faulthandler.register(_CPU_TIME, log, chain=True)
        _limit_memory(kind.limits.memory_mb)
        for i, recipe in enumerate(recipes):
            own = folder / str(i)
            own.mkdir()
            _limit_cpu(kind.limits.cpu_s)
            outcome = attempt(kind, recipe, own)
            os.write(into, json.dumps(to_json(outcome)).encode() + b"\n")
            shutil.rmtree(own, ignore_errors=True)
            if outcome.status == "finding":
                break  # what it leaves behind must not count against the next
        code = 0
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """Nothing goes on when who started it was ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _silence() -> None:
    """Nothing comes from stdin, and nothing shows of stdout and stderr."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _limit_memory(megabytes: int) -> None:
    """Memory of its own: a mapped file of any size is none."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmData:\s*(\d+) kB", status)
    assert found is not None
    limit = int(found[1]) * 1024 + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def outcomes_of(kind: Kind, recipes: Sequence[Recipe]) -> Iterator[tuple[Recipe, Outcome]]:
    """What comes of each case, in order. A finding that needs those before it is told with them."""
    at = 0
    while at < len(recipes):
        begin = at
        child = _Child.start(kind, recipes[begin:])
        try:
            for outcome in child.outcomes(kind.limits.wall_s):
                if outcome.status == "finding" and at > begin:
                    together = {"several": recipes[begin : at + 1]}
                    ((_, alone),) = outcomes_of(kind, [recipes[at]])
                    if alone.status == "finding" or outcome.what == "time":
                        yield recipes[at], alone
                    else:
                        yield together, outcome
                else:
                    yield recipes[at], outcome
                at += 1
        finally:
            child.remove()


# ---- the zygote


class Zygote:
    """A process that has prepared a kind, and forks a child for every group of cases."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        ours, theirs = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _be_zygote(kind, theirs[0], ours[1])
        os.close(theirs[0])
        os.close(ours[1])
        self._answers = ours[0]
        self._pending = b""
        self._questions = os.fdopen(theirs[1], "w", encoding="utf-8")

    def fileno(self) -> int:
        """What becomes readable when there is an answer."""
        return self._answers

    def ask(self, cases: Sequence[str | Recipe]) -> None:
        """Begin with cases: seeds to draw them from, or recipes."""
        self._questions.write(json.dumps(cases) + "\n")
        self._questions.flush()

    def answers(self) -> list[tuple[Recipe | None, Outcome]]:
        """Outcomes that have come, after waiting for any; findings with their recipe."""
        data = os.read(self._answers, 1 << 20)
        if not data:
            raise RuntimeError(f"the process that prepares {self.kind.name} has died")
        *lines, self._pending = (self._pending + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        return [(answer["recipe"], Outcome(**answer["outcome"])) for answer in answers]

    def outcome(self, recipe: Recipe) -> Outcome:
        """What comes of one case, waited for."""
        self.ask([recipe])
        answers: list[tuple[Recipe | None, Outcome]] = []
        while not answers:
            answers = self.answers()
        return answers[0][1]

    def close(self, *, at_once: bool = False) -> None:
        """End the process: when it has done what it was asked for, or in the middle of it."""
        if at_once:
            os.kill(self.pid, signal.SIGKILL)
        self._questions.close()
        os.close(self._answers)
        os.waitpid(self.pid, 0)


def _be_zygote(kind: Kind, questions: int, answers: int) -> None:
    """All that a zygote does; it never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _die_with_parent()
        _close_all_but(questions, answers)
        with (
            os.fdopen(answers, "w", encoding="utf-8") as out,
            os.fdopen(questions) as lines,
            tempfile.TemporaryDirectory(prefix="kind-") as folder,
        ):
            kind.prepare(Path(folder))
            gc.collect()
            gc.freeze()  # children do not touch, and thereby copy, what is there
            for line in lines:
                _answer(kind, json.loads(line), out)
        code = 0
    except BrokenPipeError:
        code = 0  # who asked has gone
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _answer(kind: Kind, cases: list[str | Recipe], out: IO[str]) -> None:
    recipes = [kind.recipe_of(case) if isinstance(case, str) else case for case in cases]
    for start in range(0, len(recipes), kind.group):
        for recipe, outcome in outcomes_of(kind, recipes[start : start + kind.group]):
            told = recipe if outcome.status == "finding" else None
            out.write(json.dumps({"recipe": told, "outcome": to_json(outcome)}) + "\n")
            out.flush()


def _close_all_but(*kept: int) -> None:
    """Pipes of other zygotes, which would keep them alive."""
    begin = 3
    for descriptor in sorted(kept):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, 4096)
