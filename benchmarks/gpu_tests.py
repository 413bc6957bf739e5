"""The conformance table as parts of the GPU benchmark: as far as the time goes, and on from there.

Tests run in an order in which each op's are spread evenly, so that a part of them is a sample of
all. A test whose kernel breaks the device, or never ends, is counted as failed, and the next
process goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from benchmarks.gpu_device import Device
from benchmarks.gpu_run import Values
from benchmarks.gpu_worker import Broken, Notes
from ggmlpy.backends import get_backend
from ggmlpy.conformance.suite import ConformanceTest, Result, Status, Subject, run_test
from ggmlpy.conformance.table import all_tests

# What the models of this benchmark run.
MODEL_OPS = {
    "mul_mat", "flash_attn_ext", "rms_norm", "rope_ext", "swiglu_split", "get_rows", "set_rows",
    "add", "mul", "cpy",
}  # fmt: skip
MAX_FAILURES = 300  # that are listed


def selected(of_models: bool) -> list[ConformanceTest]:
    """The tests of the ops that the models run, or all others."""
    return spread([test for test in all_tests() if (test.op in MODEL_OPS) == of_models])


def spread(tests: Sequence[ConformanceTest]) -> list[ConformanceTest]:
    """Tests in an order of which any beginning has about the same share of each op's tests."""
    n_of: dict[str, int] = {}
    for test in tests:
        n_of[test.op] = n_of.get(test.op, 0) + 1
    seen: dict[str, int] = {}
    keys = []
    for test in tests:
        seen[test.op] = seen.get(test.op, 0) + 1
        keys.append((seen[test.op] / n_of[test.op], test.op))
    order = sorted(range(len(tests)), key=keys.__getitem__)
    return [tests[i] for i in order]


def run_selection(device: Device, notes: Notes, of_models: bool, n_most: int | None) -> None:
    """Run the tests of a selection, of which the first `n_most` if that is given."""
    others = [] if device.is_emulated else [get_backend(device.name)]
    subject = Subject(device.backend, others)
    run_all(
        list(islice(selected(of_models), n_most)),
        notes,
        lambda test: run_test(test, subject),
        device.is_healthy,
    )


def run_all(
    tests: Sequence[ConformanceTest],
    notes: Notes,
    run: Callable[[ConformanceTest], Result],
    is_healthy: Callable[[], bool],
) -> None:
    """Run tests behind those that an earlier run has done. Raises Broken."""
    values = notes.values
    if values.get("n_tests") != len(tests):  # the table is another one now: from the start
        values.clear()
        values |= {"n_tests": len(tests), "n_done": 0, "pass": 0, "fail": 0, "skip": 0}
        values |= {"failures": [], "skipped": {}, "running": None}
    if values["running"] is not None:
        text = "its process died, or was ended because the test did not end"
        _count(values, tests[values["n_done"]], Status.FAIL, text)
    while values["n_done"] < len(tests):
        test = tests[values["n_done"]]
        notes.check_time()
        notes.add(running=test.id)
        result = run(test)
        _count(values, test, result.status, result.message)
        if result.status is Status.FAIL and not is_healthy():
            raise Broken(f"{test.id} broke the device")
    notes.add()


def _count(values: Values, test: ConformanceTest, status: Status, message: str) -> None:
    values["n_done"] += 1
    values["running"] = None
    values[status.value] += 1
    if status is Status.FAIL and len(values["failures"]) < MAX_FAILURES:
        values["failures"].append({"id": test.id, "op": test.op, "message": message})
    if status is Status.SKIP:
        reason = message.partition(" of ")[0]
        values["skipped"][reason] = values["skipped"].get(reason, 0) + 1
