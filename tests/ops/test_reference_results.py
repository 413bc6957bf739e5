"""Every op against ggml's own results, which round activations and use tables at times."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy.backends import get_backend
from ggmlpy.conformance.judge import nmse
from ggmlpy.graph.arrays import read_array
from ggmlpy.sched.compute import compute
from tests.reference_ops import ReferenceResult, reference_results

N_RESULTS = 98  # in the file: a case that is lost would pass in silence
LIMITS = {"mul_mat": 5e-4, "mul_mat_id": 5e-4, "flash_attn_ext": 5e-4, "soft_max_ext": 1e-6}
EXACT = ("get_rows", "set_rows", "cpy", "cont", "argsort", "repeat", "pad_ext", "pool_2d")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("i", range(N_RESULTS))
def test_agrees_with_ggml(i: int, backend: str) -> None:
    case = reference_results()[i]
    y = case.node()
    assert (y.ne, y.type) == (case.out.ne, case.out.type), case.expr
    got = np.asarray(compute(y, backend=backend)).reshape(y.ne[::-1])
    want = read_array(case.out_bytes, case.out)
    assert np.isfinite(want).all(), case.expr
    kind = case.name.split()[0]
    if kind in EXACT:
        assert y.tobytes() == case.out_bytes.tobytes(), case.expr
    else:
        assert nmse(got, want) <= LIMITS.get(kind, 1e-7), case.expr


def test_cpu_has_kernels_for_all() -> None:
    cpu = get_backend("cpu")
    assert [r.name for r in reference_results() if not cpu.supports(r.node())] == []


def test_no_result_is_left_out() -> None:
    results: list[ReferenceResult] = reference_results()
    assert len(results) == N_RESULTS
    assert len({type(r.node().op) for r in results}) >= 25
