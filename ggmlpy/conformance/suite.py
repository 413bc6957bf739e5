"""Tests of a backend, one after the other: each passes, fails with a reason, or is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Protocol

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.checks import NotSupported, check_case, check_node
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.run import computing
from ggmlpy.conformance.shrink import shrink
from ggmlpy.graph.tensor import Tensor

_PREPARED_AT_ONCE = 1000  # tests, whose inputs are in memory at the same time


class Status(Enum):
    """What became of a test."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a test: `message` says why it failed or was skipped, in one line."""

    id: str
    op: str
    status: Status
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Subject:
    """The backend under test, and the same backend on other numbers of threads.

    backend   runs every test
    others    must give the same bits; empty for a backend that has no threads of the CPU
    seed      of the inputs
    """

    backend: Backend
    others: Sequence[Backend] = ()
    seed: int = 0


class ConformanceTest(Protocol):
    """A test of the suite."""

    @property
    def id(self) -> str:
        """Names the test, and says all that it depends on besides the seed."""

    @property
    def op(self) -> str:
        """The op under test, or what a scenario is about."""

    def nodes(self, seed: int) -> list[Tensor]:
        """Nodes whose kernels it runs, for `Backend.prepare`."""

    def check(self, subject: Subject) -> str:
        """What is wrong, in one line; empty if nothing. Raises NotSupported to be skipped."""


@dataclass(frozen=True, slots=True)
class CaseTest:
    """A case of the table."""

    case: Case

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def op(self) -> str:
        return self.case.op

    def nodes(self, seed: int) -> list[Tensor]:
        return computing(build(self.case, seed))

    def check(self, subject: Subject) -> str:
        return check_case(self.case, subject.backend, subject.others, subject.seed)


def prepare(subject: Subject, tests: Iterable[ConformanceTest]) -> None:
    """Let the backend compile, in a few large pieces, what the tests need of it. Nodes that it
    cannot even say whether it supports are left to their tests."""
    left = iter(tests)
    while some := list(islice(left, _PREPARED_AT_ONCE)):
        nodes = [node for test in some for node in test.nodes(subject.seed)]
        subject.backend.prepare([node for node in nodes if _claims(subject.backend, node)])


def _claims(backend: Backend, node: Tensor) -> bool:
    try:
        return backend.supports(node)
    except Exception:
        return False


def failure_of(case: Case, subject: Subject) -> str:
    """What the backend gets wrong of a case, or raises; empty if nothing, and if it is skipped.

    Raises the error of a case that cannot be built.
    """
    y = build(case, subject.seed)
    try:
        return check_node(y, subject.backend, subject.others)
    except NotSupported:
        return ""
    except Exception as error:
        return described(error)


def shrink_case(case: Case, subject: Subject) -> tuple[Case, str]:
    """The smallest variant of a failing case that fails too, and what is wrong with it."""
    small = shrink(case, lambda variant: bool(failure_of(variant, subject)))
    return small, failure_of(small, subject)


def described(error: Exception) -> str:
    """An error as the message of a failed test."""
    return f"{type(error).__name__}: {error}"


def run_test(test: ConformanceTest, subject: Subject) -> Result:
    """Run one test. Whatever the backend raises is a failure, and the next tests still run."""
    start = time.perf_counter()
    try:
        wrong = test.check(subject)
        status = Status.FAIL if wrong else Status.PASS
    except NotSupported as reason:
        wrong, status = str(reason), Status.SKIP
    except Exception as e:
        wrong, status = described(e), Status.FAIL
    first_line = wrong.splitlines()[0] if wrong else ""
    return Result(test.id, test.op, status, first_line, time.perf_counter() - start)


def run_tests(
    tests: Iterable[ConformanceTest],
    subject: Subject,
    report: Callable[[Result], None] = lambda result: None,
) -> Iterator[Result]:
    """The results of the tests in order, each as soon as it is there."""
    for test in tests:
        result = run_test(test, subject)
        report(result)
        yield result
