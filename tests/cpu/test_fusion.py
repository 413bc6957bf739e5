"""Fusion on the CPU: who else reads a value, where things lie in memory, and the switch."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.backends.base import Places
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.fusion import NAMES, chosen
from ggmlpy.errors import BackendError
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.assignment import Pin
from tests.cpu.fused import (
    computed,
    floats,
    gated,
    kernels,
    normed,
    weight,
)

# --- who else reads, and where things lie -------------------------------------------------------


def test_values_for_another_backend_are_made() -> None:
    x = normed()
    y = ops.mul(x, floats(24))
    far = ops.silu(x)

    def elsewhere(*ops_there: str) -> Pin:
        return lambda node: "reference" if node.op and node.op.name in ops_there else None

    assert kernels([y], pin=elsewhere("silu")) == ["neg_f32", "rms_norm_mul_f32"]
    assert kernels([y, far], pin=elsewhere("silu")) == ["neg_f32", "rms_norm_f32", "mul_f32"]
    assert kernels([y], pin=elsewhere("mul")) == ["neg_f32", "rms_norm_f32"]


def test_every_node_that_someone_looks_at_is_computed() -> None:
    """As a dump of all values asks for them: by making every node an output."""
    x = floats(24, 3)
    total = ops.add(x, computed(24, 3))
    normed = ops.mul(ops.rms_norm(total, 1e-5), floats(24))
    y = gated("f32", "swiglu", 24, 33, normed)
    graph = Graph(y)
    assert kernels(graph.nodes) == kernels([y], "none")
    assert len(kernels([y])) == 3 < len(graph.nodes)


def test_without_being_told_what_is_wanted_a_plan_computes_all() -> None:
    memory = np.zeros(1 << 12, np.uint8)
    x = floats(8)
    t = ops.rms_norm(x, 1e-5)
    y = ops.mul(t, floats(8))
    places = _places(memory, {x: 0, t: 256, y: 256, y.src[1]: 512})
    plan = CpuBackend(1).plan([t, y], places)
    assert plan.kernels == ("rms_norm_f32", "mul_f32")
    assert CpuBackend(1).plan([t, y], places, {y}).kernels == ("rms_norm_mul_f32",)


@pytest.mark.parametrize(("at", "fused"), [(256, True), (0, True), (32, False), (512, False)])
def test_results_do_not_overwrite_what_is_still_to_be_read(at: int, fused: bool) -> None:
    """y on the rows of x goes; a little further on, or on the weight, does not."""
    memory = np.zeros(1 << 12, np.uint8)
    x = floats(8, 3)
    t = ops.rms_norm(x, 1e-5)
    y = ops.mul(t, floats(8))
    places = _places(memory, {x: 0, t: 1024, y: at, y.src[1]: 512})
    plan = CpuBackend(1).plan([t, y], places, {y})
    assert (len(plan.kernels) == 1) == fused


def test_a_product_does_not_overwrite_its_x() -> None:
    memory = np.zeros(1 << 14, np.uint8)
    x = floats(16, 3)
    gate, up = (ops.mul_mat(weight("f32", 16, 16), x) for _ in range(2))
    y = ops.swiglu_split(gate, up)
    for at, n in ((4096, 1), (0, 3)):
        where = {x: 0, gate: 4096, up: 8192, y: at, gate.src[0]: 10240, up.src[0]: 12288}
        assert len(CpuBackend(1).plan([gate, up, y], _places(memory, where), {y}).kernels) == n


def _places(memory: np.ndarray, offsets: dict[Tensor, int]) -> Places:
    buffer = HostBuffer(memory)
    return {tensor: Place(buffer, offset) for tensor, offset in offsets.items()}


# --- the switch ---------------------------------------------------------------------------------


def test_passes_are_chosen_by_name() -> None:
    assert chosen("all") == chosen(NAMES) == frozenset(NAMES)
    assert chosen("none") == chosen([]) == frozenset()
    assert chosen("norm,rope") == {"norm", "rope"}
    with pytest.raises(
        BackendError, match="fusion: there is no 'everything'; there are norm, resid"
    ):
        CpuBackend(1, fusion="everything")


def test_settings_tell_what_is_off() -> None:
    assert "fusion" not in CpuBackend(1, fusion="all").settings()
    off = CpuBackend(1, fusion=["norm", "residual", "glu", "rope"]).settings()
    assert off.endswith("without fusion of bias, activations")


def test_the_environment_chooses_where_no_one_else_does() -> None:
    code = """if True:
        from ggmlpy.backends.cpu.backend import CpuBackend
        print(sorted(CpuBackend(1).fusion), sorted(CpuBackend(1, fusion="bias").fusion))"""
    for given, want in (("none", "[]"), ("norm,glu", "['glu', 'norm']")):
        env = {**os.environ, "GGMLPY_CPU_FUSION": given}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == f"{want} ['bias']"
