"""Every conformance case on every instruction set: right values, and the same bits whatever the
number of threads, where memory lies, and whether the result lies over source 0."""

from __future__ import annotations

import pytest

from ggmlpy.conformance import CASES, Case, build
from ggmlpy.conformance.cases.sizes import GLU, UNARY
from ggmlpy.conformance.checks import check_node
from ggmlpy.graph.types import type_of
from tests.cpu.conftest import VECTOR_ISAS, shared_out
from tests.cpu.running import backend, compile_together, supported

_FUNCTIONS = (*UNARY, *GLU, "exp", "expm1", "sqr", "sqrt", "log", "sin", "cos")
_MANY_ROWS = 60_000  # cases for the grids of GPUs


def _cases(isa: str) -> list[Case]:
    """All but the huge ones and the products (test_matmul.py); an op and its types on the best
    instruction set and one other."""
    return [
        case
        for case in CASES
        if all(len(ne) < 2 or ne[1] < _MANY_ROWS for ne in case.ne)
        and not case.op.startswith("mul_mat")
        and (isa, _kind(case)) in _SHARED_OUT
        and (isa == VECTOR_ISAS[0] or not _is_variant(case))
    ]


def _is_variant(case: Case) -> bool:
    """Whether a function has the same code for another type or layout."""
    plain = set(case.types) == {"f32"} and not {"permuted", "transposed"} & set(case.layouts)
    return not plain and _op(case) in _FUNCTIONS


def _kind(case: Case) -> str:
    """What its kernel is made for: a quantised type, or an op."""
    return next((type for type in case.types if type_of(type).is_quantized), _op(case))


def _op(case: Case) -> str:
    return case.op.removesuffix("_split")


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
        cases = [c["case"] for c in chosen if c["isa"] == isa]
        compile_together(isa, [build(case) for case in cases if isinstance(case, Case)])


@pytest.mark.parametrize(
    ("isa", "case"),
    [pytest.param(isa, case, id=f"{isa} {case.id}") for isa in VECTOR_ISAS for case in _cases(isa)],
)
def test_case(isa: str, case: Case) -> None:
    y = build(case)
    if not supported(y, isa):
        pytest.skip(f"no CPU kernel for {case.id}")
    others = [backend(isa, 2), backend(isa, 3)]
    assert check_node(y, backend(isa, 1), others, shift=4) == ""
