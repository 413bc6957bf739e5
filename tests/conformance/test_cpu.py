"""The CPU backend against the reference, case by case, on the machine's best instruction set."""

from __future__ import annotations

from collections import Counter

import pytest

from ggmlpy.backends.cpu.isa import available
from ggmlpy.conformance import CASES, Case, build, compare
from ggmlpy.sched.compute import compute
from tests.cpu.running import compile_together, run, supported

ISA = available()[0].name
UNSUPPORTED: dict[str, int] = {}  # cases without a kernel, by op


@pytest.fixture(scope="module", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    """All kernels that the chosen tests need."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    ]
    compile_together(ISA, [build(case) for case in chosen if isinstance(case, Case)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    y = build(case)
    if not supported(y, ISA):
        pytest.skip(f"the CPU backend has no kernel for {case.id}")
    assert compare(case, run(y, ISA, 2), compute(build(case), backend="reference")) == ""


def test_support_neither_shrinks_nor_grows_in_silence() -> None:
    unsupported = [case.op for case in CASES if not supported(build(case), ISA)]
    assert Counter(unsupported) == UNSUPPORTED
