"""Conformance cases on every instruction set: right values, and the same bits whatever the
number of threads, where memory lies, and whether the result lies over source 0."""

from __future__ import annotations

import pytest

from ggmlpy.conformance import CASES, Case, build
from ggmlpy.conformance.cases.sizes import GLU, UNARY
from ggmlpy.conformance.checks import check_node
from ggmlpy.graph.types import type_of
from tests.conformance.skips import ON_REFERENCE
from tests.cpu.conftest import VECTOR_ISAS, shared_out
from tests.cpu.running import backend, compile_together, supported

_FUNCTIONS = (*UNARY, *GLU, "exp", "expm1", "sqr", "sqrt", "log", "sin", "cos")
_MANY_ROWS = 60_000  # cases for the grids of GPUs
_PER_KERNEL = 4  # of the cases that differ by sizes and parameters only


def _cases(isa: str) -> list[Case]:
    """Some of each op, types and layouts, but for the huge ones and the products (test_matmul.py);
    an op and its types on the best instruction set and one other.

    The whole table runs on the best one: tests/conformance/test_backends.py.
    """
    return [
        case
        for case in _SAMPLE
        if (isa, _kind(case)) in _SHARED_OUT and (isa == VECTOR_ISAS[0] or not _is_variant(case))
    ]


def _is_variant(case: Case) -> bool:
    """Whether a function has the same code for another type or layout."""
    plain = set(case.types) == {"f32"} and not any(case.layouts)
    return not plain and _op(case) in _FUNCTIONS


def _kind(case: Case) -> str:
    """What its kernel is made for: a quantised type, or an op."""
    return next((type for type in case.types if type_of(type).is_quantized), _op(case))


def _op(case: Case) -> str:
    return case.op.removesuffix("_split")


def _sample() -> list[Case]:
    """Evenly over the cases of each op, types and layouts: the first, the last, and between."""
    alike: dict[tuple[object, ...], list[Case]] = {}
    for case in CASES:
        is_huge = any(len(ne) > 1 and ne[1] >= _MANY_ROWS for ne in case.ne)
        if not is_huge and not case.op.startswith("mul_mat") and case.op not in ON_REFERENCE:
            alike.setdefault((case.op, case.types, case.layouts), []).append(case)
    return [
        case
        for cases in alike.values()
        for i, case in enumerate(cases)
        if i == len(cases) - 1 or i % -(-len(cases) // _PER_KERNEL) == 0
    ]


_SAMPLE = _sample()
_SHARED_OUT = set(shared_out(sorted({_kind(case) for case in CASES})))


@pytest.fixture(scope="module", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    """All kernels that the chosen tests need."""
    chosen = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    for isa in VECTOR_ISAS:
        kinds = {params["kind"] for params in chosen if params["isa"] == isa}
        compile_together(isa, [build(case) for case in _cases(isa) if _kind(case) in kinds])


@pytest.mark.parametrize(
    ("isa", "kind"),
    [(isa, kind) for isa in VECTOR_ISAS for kind in dict.fromkeys(map(_kind, _cases(isa)))],
)
def test_cases(isa: str, kind: str) -> None:
    others = [backend(isa, 2), backend(isa, 3)]
    wrong = {}
    n_run = 0
    for case in _cases(isa):
        if _kind(case) == kind and supported(y := build(case), isa):
            n_run += 1
            wrong[case.id] = check_node(y, backend(isa, 1), others, shift=4)
    assert {id: message for id, message in wrong.items() if message} == {}
    assert n_run
