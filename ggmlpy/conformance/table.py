"""All tests of the suite: the cases, then the scenarios."""

from __future__ import annotations

from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.scenarios import SCENARIOS
from ggmlpy.conformance.suite import CaseTest, ConformanceTest


def all_tests() -> list[ConformanceTest]:
    """In the order in which they run."""
    tests: list[ConformanceTest] = [CaseTest(case) for case in CASES]
    return tests + SCENARIOS
