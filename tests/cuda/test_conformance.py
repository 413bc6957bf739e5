"""A part of the conformance table on the emulated device: everything passes, nothing is skipped.

`ggmlpy test-ops --backend cuda-emulated` runs all of it, which takes an hour.
"""

from __future__ import annotations

import pytest

from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.conformance import Status, Subject, all_tests, prepare, run_tests
from ggmlpy.conformance.suite import ConformanceTest
from tests.conformance.skips import ON_REFERENCE

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

LEAST, SHARE = 4, 20  # tests of an op: so many of its first ones, and one of so many of all

TESTS: dict[str, list[ConformanceTest]] = {}
for each in all_tests():
    TESTS.setdefault(each.op, []).append(each)
CHOSEN = {
    op: list(dict.fromkeys([*tests[:: max(1, len(tests) // LEAST)][:LEAST], *tests[::SHARE]]))
    for op, tests in TESTS.items()
}


def test_there_are_enough() -> None:
    assert sum(map(len, CHOSEN.values())) >= 600
    assert all(len(CHOSEN[op]) == len(tests) for op, tests in TESTS.items() if len(tests) <= LEAST)


@pytest.mark.parametrize("op", CHOSEN)
def test_passes(op: str) -> None:
    subject = Subject(CudaBackend(EmulatedDriver()))
    prepare(subject, CHOSEN[op])
    results = list(run_tests(CHOSEN[op], subject))
    assert [(r.id, r.message) for r in results if r.status is Status.FAIL] == []
    skipped = [r.id for r in results if r.status is Status.SKIP]
    wanted = [r.id for r in results if op in ON_REFERENCE]
    assert skipped == wanted


@pytest.mark.parametrize("op", ["mul_mat", "mul_mat_id", "flash_attn_ext", "argsort", "top_k"])
def test_blocks_with_the_shared_memory_of_smaller_devices(op: str) -> None:
    """99 KiB, which GPUs that are not for data centres have."""
    subject = Subject(CudaBackend(EmulatedDriver(shared_bytes=99 << 10)))
    results = run_tests(TESTS[op][:: 2 * SHARE], subject)
    assert [(r.id, r.message) for r in results if r.status is not Status.PASS] == []
