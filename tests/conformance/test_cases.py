"""The table of cases itself: complete, reproducible, and free of accidents in its inputs."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.conformance import CASES, Case, build, compare
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, WRITABLE
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.op import OPS
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BY_ID
from ggmlpy.sched.compute import compute

NAN_ON_PURPOSE = ("sqrt", "log")  # of numbers below 0


def inputs(y: Tensor) -> list[bytes]:
    return [leaf.tobytes() for leaf in Graph(y).leafs]


def test_ids_are_unique() -> None:
    ids = [case.id for case in CASES]
    assert len(set(ids)) == len(ids)


def test_every_op_that_computes_has_cases() -> None:
    covered = {node.op.name for case in CASES for node in Graph(build(case)) if node.op}
    missing = {name for name, op in OPS.items() if op.computes} - covered
    assert missing == set()


def test_the_table_knows_every_type_that_can_be_read() -> None:
    unread = {"q8_1", "q8_K", "q1_0", "q2_0"}  # activations only, or unknown to the gguf package
    quantised = {t.name for t in BY_ID.values() if t.is_quantized}
    assert quantised - unread == set(QUANTIZED)
    assert {t for t in WRITABLE if t not in FLOATS} <= set(QUANTIZED)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_reference_runs_every_case(case: Case) -> None:
    """Twice on inputs of their own: equal bytes in, equal bytes out, and no NaN by accident."""
    first, second = build(case), build(case)
    assert inputs(first) == inputs(second)
    want = compute(first, backend=ReferenceBackend())
    got = compute(second, backend=ReferenceBackend())
    np.testing.assert_array_equal(got, want)
    assert compare(case, got, want) == ""
    if case.op not in NAN_ON_PURPOSE:
        assert not np.isnan(want.astype(np.float64)).any()
    columns = case.ne[0][0] if case.ne else 0
    if columns > 1 and case.params.get("mask") != "all":
        assert want.size == 1 or np.nanmin(want) < np.nanmax(want), "every element is the same"


def test_the_seed_is_the_id() -> None:
    one, other = Case("sqr", ne=[(64,)]), Case("sqr", ne=[(64, 1)])
    assert one.id != other.id
    assert inputs(build(one)) != inputs(build(other))
