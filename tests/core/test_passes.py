"""Passes: which run, on which backends, and that no one misses the values that they spare."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ggmlpy import compute, ops
from ggmlpy.backends.base import Backend
from ggmlpy.backends.null import NullBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.buffer import HOST
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, zeros
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import Executable, scheduled
from ggmlpy.sched.passes import PASSES, _Fusible, chosen
from tests.core.fusible import PATTERNS, computed, floats, glu, norm_and_bias, ops_of, steps

APART = ["neg", "sqr", "rms_norm", "mul", "add"]  # nodes of norm_and_bias
UNKNOWN = (
    "unknown pass 'everything'; known are residual, norm, glu, rope, bias, scan, products,"
    " stores, all and none"
)


def test_a_node_by_itself_is_a_step() -> None:
    y = ops.mul_mat(floats(8, 5), floats(8, 3))
    step = Step.of(y)
    assert (step.op, step.node, step.nodes, step.interior) == ("mul_mat", y, (y,), ())
    assert step.operands == {"weight": y.src[0], "x": y.src[1]}
    assert (step.results, step.in_place, step.is_fused) == ({"y": y}, {}, False)
    assert Step.of(ops.add(y, floats(5, 3))).in_place == {"y": ("a",)}


# --- the switch -----------------------------------------------------------------------------------


def test_passes_are_chosen_by_name() -> None:
    assert chosen("all") == chosen(PASSES) == frozenset(PASSES)
    assert chosen("none") == chosen([]) == frozenset()
    assert chosen("norm,rope") == chosen(("rope", "norm")) == {"norm", "rope"}
    with pytest.raises(ArgumentError, match=f"^passes: {UNKNOWN}$"):
        chosen("everything")


def test_executables_and_compute_take_them() -> None:
    y, _ = norm_and_bias(24, 3)
    want = [b"", b""]
    for i, passes in enumerate(("all", ["norm"])):
        executable = Executable(Graph(y), [ReferenceBackend()], passes=passes)
        assert [s.op for s in executable.schedule.splits[0].steps] == [
            "neg",
            "sqr",
            "rms_norm+mul+add",
        ]
        want[i] = compute(y, backend="reference", passes=passes).tobytes()
    assert ops_of([y], ["glu"]) == ops_of([y], "none") == APART
    assert want == [compute(y, backend="reference", passes="none").tobytes()] * 2
    with pytest.raises(ArgumentError, match="unknown pass 'speed'"):
        compute(y, backend="reference", passes=["speed"])
    not_names: Any = 5
    with pytest.raises(ArgumentError, match=r"passes is an int: it must be a string, a list"):
        compute(y, backend="reference", passes=not_names)


@pytest.mark.parametrize("op", PATTERNS)
def test_each_pass_works_alone(op: str) -> None:
    y, _ = PATTERNS[op](24, 3, 2)
    alone = [name for name in PASSES if op in ops_of([y], [name])]
    assert len(alone) == 1
    assert op not in ops_of([y], set(PASSES) - set(alone))


def test_the_environment_chooses_where_no_one_else_does() -> None:
    code = """if True:
        from ggmlpy.sched.passes import chosen
        print(sorted(chosen("bias")), sorted(chosen()))"""
    assert run_python(code, "norm,glu").stdout == "['bias'] ['glu', 'norm']\n"
    failed = run_python(code, "everything")
    assert failed.stderr.endswith(f"ArgumentError: GGMLPY_PASSES: {UNKNOWN}\n")


def run_python(code: str, passes: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GGMLPY_PASSES": passes}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


# --- backends -------------------------------------------------------------------------------------


class Few(NullBackend):
    """Runs single nodes, and one kind of fused step."""

    name = "few"

    def __init__(self, *fused: str) -> None:
        self.fused = fused
        self.asked: list[str] = []

    def supports_step(self, step: Step) -> bool:
        assert step.is_fused
        self.asked.append(step.op)
        return step.op in self.fused


def test_a_backend_gets_the_steps_that_it_runs() -> None:
    y, _ = norm_and_bias(24, 3)
    for fused, want in (
        (["rms_norm+mul+add"], ["neg", "sqr", "rms_norm+mul+add"]),
        (["rms_norm+mul"], ["neg", "sqr", "rms_norm+mul", "add"]),
        ([], APART),
    ):
        backend = Few(*fused)
        assert [step.op for step in steps([y], "all", backend)] == want
        assert backend.asked[0] == "rms_norm+mul+add", "the largest first"


def test_a_backend_that_says_nothing_gets_single_nodes() -> None:
    class Plain(NullBackend):
        supports_step = Backend.supports_step

    y, _ = norm_and_bias(24, 3)
    assert [step.op for step in steps([y], "all", Plain())] == [
        "neg",
        "sqr",
        "rms_norm",
        "mul",
        "add",
    ]


def elsewhere(*ops_there: str) -> Pin:
    return lambda node: "reference" if node.op and node.op.name in ops_there else None


def test_values_for_another_backend_are_made() -> None:
    x = ops.rms_norm(computed(24, 3), 1e-5)
    y, far = ops.mul(x, floats(24)), ops.silu(x)

    def made(outputs: list[Tensor], pin: Pin) -> list[str]:
        return [s.op for s in steps(outputs, "all", NullBackend(), ReferenceBackend(), pin=pin)]

    assert made([y], elsewhere("silu")) == ["neg", "rms_norm+mul"]
    assert made([y, far], elsewhere("silu")) == ["neg", "rms_norm", "mul", "silu"]
    assert made([y], elsewhere("mul")) == ["neg", "rms_norm", "mul"]


def test_every_node_that_someone_looks_at_is_computed() -> None:
    """As a dump of all values asks for them: by making every node an output."""
    total = ops.add(floats(24, 3), computed(24, 3))
    normed = ops.mul(ops.rms_norm(total, 1e-5), floats(24))
    y = ops.add(ops.mul_mat(floats(24, 33), normed), floats(33))
    graph = Graph(y)
    assert ops_of(graph.nodes) == ops_of([y], "none")
    assert ops_of([y]) == ["neg", "add+rms_norm+mul", "mul_mat+add"]


def test_a_value_in_the_memory_of_another_is_written() -> None:
    """Whatever a pass proposes: who reads the other tensor reads the value."""
    cache = zeros("f32", (8, 2), flags=Flag.STATE)
    written = ops.cpy(floats(8, 2), cache)
    y = ops.neg(written)
    split = scheduled(Graph(y), [NullBackend()], passes="none").splits[0]
    step = Step(y, (written, y), {"x": written.src[0], "dst": cache}, {"y": y})
    assert not _Fusible(split, set()).accepts(step)


# --- memory ---------------------------------------------------------------------------------------


def test_an_arena_does_not_hold_what_a_pass_spares() -> None:
    """Two products of 5 rows become one result: 5 * 4 bytes a row of x, padded to 64."""
    y, _ = glu(48, 33)
    fused, apart = (
        Executable(Graph(y), [NullBackend()], passes=passes).allocation
        for passes in ("glu", "none")
    )
    x_bytes, y_bytes = 48 * 33 * 4, -(-5 * 33 * 4 // 64) * 64
    assert fused.arena_bytes == fused.live_bytes == {HOST: x_bytes + y_bytes}
    assert apart.arena_bytes == apart.live_bytes == {HOST: x_bytes + 2 * y_bytes}


def test_what_has_no_memory_cannot_be_read() -> None:
    y, _ = norm_and_bias(24, 3)
    executable = Executable(Graph(y), [ReferenceBackend()])
    executable.run()
    with pytest.raises(AssertionError, match="has no memory: it is no output, and a pass fused it"):
        executable.read(y.src[0])
    y.src[0].flags |= Flag.OUTPUT
    again = Executable(Graph(y), [ReferenceBackend()])
    again.run()
    np.testing.assert_array_equal(again.read(y), executable.read(y))
    assert np.isfinite(again.read(y.src[0])).all()
