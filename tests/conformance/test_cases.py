"""The table of cases itself: complete, reproducible, and free of accidents in its inputs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from ggmlpy.backends import get_backend
from ggmlpy.conformance import CASES, Case, build
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED, WRITABLE
from ggmlpy.conformance.run import computing, unsupported
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.op import OPS
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import BY_ID
from ggmlpy.sched.compute import compute

REFERENCE = get_backend("reference")
NAN_ON_PURPOSE = ("sqrt", "log")  # of numbers below 0
ALIKE_ON_PURPOSE = ("fill", "timestep_embedding", "im2col_back", "pool_1d")  # in some cases
BY_OP: dict[str, list[Case]] = defaultdict(list)
for each in CASES:
    BY_OP[each.op].append(each)


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
    unread = {"q8_1", "q8_K"}  # activations only
    quantised = {t.name for t in BY_ID.values() if t.is_quantized}
    assert quantised - unread == set(QUANTIZED)
    assert {t for t in WRITABLE if t not in FLOATS} <= set(QUANTIZED)


@pytest.mark.parametrize("op", BY_OP)
def test_inputs_are_reproducible_and_results_are_numbers(op: str) -> None:
    for case in BY_OP[op]:
        first, second = build(case), build(case)
        assert inputs(first) == inputs(second), case.id
        if unsupported(REFERENCE, computing(first)):  # copies of types without a quantiser
            continue
        values = compute(first, backend=REFERENCE)
        if op not in NAN_ON_PURPOSE and case.params.get("values") != "special":
            assert not np.isnan(values.astype(np.float64)).any(), case.id
        columns = case.ne[0][0] if case.ne else 0
        if (
            op not in ALIKE_ON_PURPOSE
            and columns > 1
            and values.size > 1
            and case.params.get("mask") != "all"
        ):
            assert np.nanmin(values) < np.nanmax(values), f"{case.id}: every element is the same"


def test_the_seed_is_the_id_and_the_number() -> None:
    one, other = Case("sqr", ne=[(64,)]), Case("sqr", ne=[(64, 1)])
    assert one.id != other.id
    assert len({b"".join(inputs(y)) for y in (build(one), build(other), build(one, 1))}) == 3
