"""Launches of a real plan, predicted from the machine code that NVRTC makes of their kernels."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from benchmarks.gpu_covers import covered
from benchmarks.gpu_executed import TASTES, Cells, Code
from benchmarks.gpu_kernels import MachineCode, Predicted, attention_summary, predict, summary
from benchmarks.gpu_limits import H100
from benchmarks.gpu_steps import LLAMA_3_8B, Planner, Step
from benchmarks.sass import Function, Loop, nvdisasm
from benchmarks.sass_mix import Mix
from ggmlpy.backends.cuda.builder import Prepared
from ggmlpy.backends.cuda.nvrtc import nvrtc
from ggmlpy.errors import BackendError

WEIGHTS = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336 + 512)  # of one layer and 512 tokens


def _can_disassemble() -> bool:
    try:
        return bool(nvrtc() and nvdisasm())
    except BackendError:
        return False


pytestmark = pytest.mark.skipif(
    not _can_disassemble(), reason="NVRTC or nvdisasm is not installed (nvidia-cuda-nvdisasm)"
)


@pytest.fixture(scope="module")
def plans() -> tuple[list[Prepared], list[Prepared]]:
    return Planner(replace(LLAMA_3_8B, n_layer=1, n_vocab=512)).launches("q8_0", 1, 4096)


@pytest.fixture(scope="module")
def code() -> MachineCode:
    return MachineCode(H100.arch)


def products_of(found: list[Predicted]) -> list[Predicted]:
    return [p for p in found if p.launch.form.name.startswith("multiply_")]


def test_a_token_reads_all_weights_once(
    plans: tuple[list[Prepared], list[Prepared]], code: MachineCode
) -> None:
    step = Step("q8_0", Cells(1, 4096, 1))
    found = predict(H100, code, plans[1], step.cells)
    weights = products_of(found)
    assert sum(p.n * p.covered.n_elements for p in weights) == WEIGHTS
    assert all(1.06 <= p.row(H100)["bytes_per_element"] < 1.3 for p in weights)
    assert all(p.covered.iteration for p in weights)
    assert all(p.times.total_s > 1e-6 and p.occupancy.blocks for p in found)
    made = summary(H100, step, found)
    assert made["launches"] == len(plans[1])
    assert 0 < made["share"] < 1
    assert made["gbytes"] == pytest.approx((WEIGHTS * 34 / 32 + 4097 * 4096) / 1e9, rel=0.02)


def test_a_prompt_takes_what_tensor_cores_take_at_least(
    plans: tuple[list[Prepared], list[Prepared]], code: MachineCode
) -> None:
    step = Step("q8_0", Cells(1, 0, 512))
    found = predict(H100, code, plans[0], step.cells)
    for p in products_of(found):
        n_columns = p.launch.args["y"]["ne"]["bound"][1]
        if n_columns == 1:  # by instructions of four products each
            continue
        assert p.covered.demand.int8_ops >= 2 * p.covered.n_elements * n_columns
    assert 0 < attention_summary(H100, step, found)["share"] < 1


def test_the_output_of_one_token_is_no_product_of_a_prompt(
    plans: tuple[list[Prepared], list[Prepared]], code: MachineCode
) -> None:
    step = Step("q8_0", Cells(1, 0, 512))
    found = predict(H100, code, plans[0], step.cells)
    others = [p for p in found if not p.is_matrix_vector]
    assert len(others) < len(found)
    assert summary(H100, step, others)["share"] == summary(H100, step, found)["share"]


@pytest.mark.parametrize(("type", "parts"), [("f16", 1), ("bf16", 2)])
def test_all_parts_of_x_are_multiplied(code: MachineCode, type: str, parts: int) -> None:
    plans = Planner(replace(LLAMA_3_8B, n_layer=1, n_vocab=512)).launches(type, 1, 0)
    for p in products_of(predict(H100, code, plans[0], Cells(1, 0, 512))):
        n_columns = p.launch.args["y"]["ne"]["bound"][1]
        of_tiles = 2 * parts * p.covered.n_elements * ceil(n_columns / 8) * 8
        assert of_tiles <= p.covered.demand.f16_flops < 1.1 * of_tiles


def test_a_kernel_that_is_another_is_not_predicted(
    plans: tuple[list[Prepared], list[Prepared]],
) -> None:
    launch = next(x for x in plans[1] if x.form.name.startswith("multiply_"))
    name = launch.form.name
    other = {name: Function(name, Loop(0, Mix({"FFMA": 1}), 1, ()), 1)}
    with pytest.raises(ValueError, match="of another kernel"):
        covered(launch, Code(dict.fromkeys(TASTES, other), name), Cells(1, 0, 1))
