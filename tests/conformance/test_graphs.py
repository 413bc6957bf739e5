"""Random graphs: none differs, and planted mistakes are found and shrunk to a few nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.conformance.graphs import (
    Checker,
    Finding,
    Program,
    Progress,
    check_many,
    fitted,
    random_graph,
    shrink,
)
from ggmlpy.conformance.graphs.leaves import placeless_leaf
from ggmlpy.conformance.graphs.program import apply, build, encoded
from ggmlpy.graph.tensor import Tensor, zeros
from tests.conformance.planted_graphs import PLANTED, Damaging

N_GRAPHS = 150


@pytest.mark.parametrize("mode", ["alone", "split"])
@pytest.mark.parametrize("backend", ["cpu", "mock", "reference"])
def test_random_graphs(backend: str, mode: str) -> None:
    last: list[Progress] = []
    findings = check_many([Checker(backend, mode)], n_graphs=N_GRAPHS, progress=last.append)
    assert not [str(finding) for finding in findings]
    assert last[-1].n_graphs == N_GRAPHS
    assert last[-1].n_left_out == 0


@pytest.mark.parametrize("mode", ["alone", "split"])
def test_random_graphs_in_memory_that_the_cpu_does_not_see(mode: str) -> None:
    """The CPU's kernels in the mock's memory: weights are packed before their copies are there."""
    device = MockBackend(inner=CpuBackend(1))
    assert not [str(f) for f in check_many([Checker(device, mode)], n_graphs=60)]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes_are_found_and_shrunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, mode = PLANTED[name]
    checker = Checker("cpu", mode)
    plant(monkeypatch)
    found = next(check_many([checker], n_graphs=500))
    monkeypatch.undo()
    assert found.wrong.startswith(("results differ: ", "refused when run: IndexOutOfRange: "))
    assert found.program.n_nodes <= 5
    assert not checker(found.program, found.seed)
    assert not checker(found.drawn, found.seed)


@pytest.mark.parametrize(
    ("at", "wrong"), [(None, "mul_mat is wrong"), (-1, "mul_mat writes outside its result")]
)
def test_a_wrong_node_is_named(at: int | None, wrong: str) -> None:
    found = next(check_many([Checker(Damaging(at))], n_graphs=100))
    assert found.wrong.startswith(f"{wrong}: ")
    assert found.program.n_nodes == 1
    assert "\n" not in str(found.program)


def test_a_seed_stands_for_one_program() -> None:
    for seed in range(30):
        program = random_graph(seed)
        assert program == random_graph(seed)
        assert program != random_graph(seed + 1)
        assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program


def test_programs_have_what_they_are_for() -> None:
    programs = [random_graph(seed) for seed in range(200)]
    ops = {node.op for program in programs for node in program.nodes}
    assert {"permute", "set_rows", "cpy", "rope_ext", "mul_mat_id", "flash_attn_ext"} <= ops
    sizes = [program.n_nodes for program in programs]
    assert (min(sizes), max(sizes)) == (3, 40)
    leaves = [node.params for program in programs for node in program.nodes if node.is_leaf]
    for role in ("weight", "state", "input", "home"):
        assert sum(bool(params.get(role)) for params in leaves) > 100
    assert sum(program.n_runs > 1 for program in programs) > 50


def test_a_program_from_json_is_the_same_graph() -> None:
    for seed in range(60):
        program = random_graph(seed)
        again = Program.from_json(json.loads(json.dumps(program.to_json())))
        tensors, others = build(program, placeless_leaf), build(again, placeless_leaf)
        assert list(tensors) == list(others)
        for tensor, other in zip(tensors.values(), others.values(), strict=True):
            assert (tensor.spec, repr(tensor.op)) == (other.spec, repr(other.op))


def test_parameters_of_ops_go_through_json() -> None:
    """A type, and one of a few."""
    x = zeros("f32", (6, 4))
    for node in (ops.pool_2d(x, 0, 3, 1, 1, 1, 1, 0), ops.cast(x, "f16")):
        assert node.op is not None
        params = {name: encoded(value) for name, value in node.op.params().items()}
        again = apply(f"={node.op.name}", [x], json.loads(json.dumps(params)))
        assert repr(again.op) == repr(node.op)


def test_a_program_is_shown_and_saved(tmp_path: Path) -> None:
    leaf = {"type": "f32", "ne": [3, 2], "fill": "ones", "seed": 0}
    program = Program.from_json({
        "nodes": [
            ["x", "leaf", [], leaf],
            ["w", "leaf", [], {**leaf, "type": "f16", "ne": [3], "weight": True, "seed": 4}],
            ["y", "rms_norm", ["x"], {"eps": 1e-5}],
            ["z", "mul", ["y", "w"], {"pin": 1}],
        ],
        "wanted": ["z"],
        "n_runs": 2,
    })  # fmt: skip
    assert str(program) == (
        "y = rms_norm(f32[3,2] ones, eps=1e-05); z = mul(y, f16[3] ones#4 weight) on 1; "
        "-> z; 2 runs"
    )
    finding = Finding(7, "alone", program, program, "mul is wrong: in its last element")
    path = finding.save(tmp_path)
    assert path.name == "graph-7-alone.json"
    assert Program.load(path) == program
    assert "last element" in path.read_text()


def test_a_system_without_a_solution_is_judged() -> None:
    """What comes after a zero on the diagonal is infinite or NaN on every backend."""
    a, b = ({"type": "f32", "ne": [3, 3], "fill": fill, "seed": 1} for fill in ("zeros", "uniform"))
    nodes = [["a", "leaf", [], a], ["b", "leaf", [], b]]
    solve = ["x", "solve_tri", ["a", "b"], {"left": True, "lower": True, "uni": False}]
    program = Program.from_json({"nodes": [*nodes, solve]})
    assert Checker("cpu")(program) == ""


class _WithoutNorms(CpuBackend):
    def supports(self, node: Tensor) -> bool:
        return node.op is not None and "norm" not in node.op.name and super().supports(node)


def test_what_a_backend_lacks_is_left_out_and_counted() -> None:
    programs = [random_graph(seed) for seed in range(40)]
    norms = sum("norm" in node.op for program in programs for node in program.nodes)
    backend = _WithoutNorms(1)
    assert sum(fitted(program, [backend])[1] for program in programs) == norms
    assert not list(check_many([Checker(backend)], n_graphs=40))
    both = [backend, ReferenceBackend()]
    assert sum(fitted(program, both)[1] for program in programs) == 0


def test_shrinking_ends_where_nothing_smaller_fails() -> None:
    program = next(p for p in map(random_graph, range(100)) if "rope_ext" in str(p))
    small = shrink(program, lambda p: any(node.op == "rope_ext" for node in p.nodes))
    assert small.n_nodes == 1
    assert "\n" not in str(small)
