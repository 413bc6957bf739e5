"""The tests that `pytest --ggmlpy-backend=NAME` runs; see plugin.py."""

from __future__ import annotations

import pytest

from ggmlpy.conformance.suite import ConformanceTest, Status, Subject, run_test


def test_backend(ggmlpy_test: ConformanceTest, ggmlpy_subject: Subject) -> None:
    result = run_test(ggmlpy_test, ggmlpy_subject)
    if result.status is Status.SKIP:
        pytest.skip(result.message)
    if result.status is Status.FAIL:
        pytest.fail(f"{result.id}: {result.message}", pytrace=False)
