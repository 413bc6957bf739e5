"""Backend conformance: tests of every op, and of how a backend runs them.

In: a backend. Out: what it gets wrong, test by test.

    for result in run_tests(all_tests(), Subject(get_backend("cpu", 1))):
        print(result.status.value, result.id, result.message)
"""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.judge import judge, nmse
from ggmlpy.conformance.suite import Result, Status, Subject, prepare, run_test, run_tests
from ggmlpy.conformance.table import all_tests

__all__ = [
    "CASES",
    "Case",
    "Result",
    "Status",
    "Subject",
    "all_tests",
    "build",
    "judge",
    "nmse",
    "prepare",
    "run_test",
    "run_tests",
]
