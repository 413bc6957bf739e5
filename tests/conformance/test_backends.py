"""The whole suite on the CPU and the reference, and a part of it on the mock backend: everything
passes, and what is skipped is known.

The CPU runs it on the machine's best instruction set; tests/cpu/test_cases.py has the others.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ggmlpy.backends import get_backend
from ggmlpy.conformance import Status, Subject, all_tests, prepare, run_tests
from ggmlpy.conformance.suite import ConformanceTest
from tests.conformance.skips import COPIES, ON_REFERENCE

SUBJECTS: dict[str, Callable[[], Subject]] = {
    "cpu": lambda: Subject(get_backend("cpu", 1), [get_backend("cpu", 2)]),
    "reference": lambda: Subject(get_backend("reference")),
    "mock": lambda: Subject(get_backend("mock")),
}
EVERY = {"cpu": 1, "reference": 1, "mock": 4}  # of the mock's tests: it has the reference's kernels
TESTS: dict[str, list[ConformanceTest]] = {}
for each in all_tests():
    TESTS.setdefault(each.op, []).append(each)


@pytest.mark.parametrize("op", TESTS)
@pytest.mark.parametrize("name", SUBJECTS)
def test_passes(name: str, op: str) -> None:
    subject = SUBJECTS[name]()
    tests = TESTS[op][:: EVERY[name]]
    prepare(subject, tests)
    results = list(run_tests(tests, subject))
    assert [(r.id, r.message) for r in results if r.status is Status.FAIL] == []
    skipped = [r for r in results if r.status is Status.SKIP]
    if name == "cpu":
        assert len(skipped) == (len(results) if op in ON_REFERENCE else 0), skipped[:3]
    elif name == "reference":
        assert len(skipped) == COPIES[op], skipped[:3]
    else:
        assert len(skipped) <= COPIES[op], skipped[:3]
