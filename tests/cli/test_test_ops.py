"""`ggmlpy test-ops`: what it runs, shows and saves, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy import backends
from ggmlpy.backends import get_backend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.support import support_of, support_page
from ggmlpy.graph.tensor import Tensor
from tests.cli.conftest import Run
from tests.conformance.faulty import FaultyBackend, Work

ROOT = Path(__file__).resolve().parents[2]


def last_column_wrong(work: Work) -> bool:
    """The last of more than four columns of a sum is 0."""
    if work.op.name != "add" or work.node.ne[0] < 5 or work.node.type.name != "f32":
        return False
    work.run()
    values = work.read(work.node)
    values[..., -1] = 0
    work.write(values)
    return True


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed backend with a mistake."""
    known = dict(backends._BUILT_IN, faulty=lambda n: FaultyBackend(last_column_wrong))
    monkeypatch.setattr(backends, "_BUILT_IN", known)


def test_a_right_backend_passes(run: Run) -> None:
    done = run("test-ops", "--backend", "cpu", "--op", "rms_norm", "--filter", r"\[5,7")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["|", "op", "|", "pass", "|", "fail", "|", "skip", "|"]
    assert lines[2].startswith("| rms_norm ")
    assert lines[-1].startswith("cpu: ") and " 0 failed, 0 skipped in " in lines[-1]


@pytest.mark.usefixtures("faulty")
def test_a_mistake_is_shrunk_saved_and_replayed(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "failed"
    done = run("test-ops", "--backend", "faulty", "--op", "add", "--filter",
               r"add f32\[5,7,11,13\] f32\[5,7,11,13\] span", "--save", folder)  # fmt: skip
    assert done.code == 1
    assert "FAIL add f32[5,7,11,13] f32[5,7,11,13] span=0.9..1.1" in done.err
    assert "elements are wrong, the worst at ne [4," in done.err
    assert "smallest: add f32[5,1,1,1] f32[1,1,1,1]" in done.err
    (saved,) = folder.glob("*.npz")
    again = run("test-ops", "--backend", "faulty", "--replay", saved)
    assert again.code == 1 and "elements are wrong" in again.out
    right = run("test-ops", "--backend", "reference", "--replay", saved)
    assert right.code == 0 and right.out.splitlines()[0].endswith(": passes")


@pytest.mark.usefixtures("faulty")
def test_a_random_graph_is_shrunk_saved_and_replayed(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "failed"
    done = run("test-ops", "--backend", "faulty", "--op", "none", "--graphs", 25, "--save", folder)
    assert done.code == 1 and "25 random graphs differ" in done.err
    saved = sorted(folder.glob("graph-*-alone.json"))[0]
    again = run("test-ops", "--backend", "faulty", "--replay", saved)
    assert again.code == 1 and "= add(" in again.out and "when it was saved, " in again.out
    right = run("test-ops", "--backend", "reference", "--replay", saved)
    assert right.code == 0 and "(alone): passes" in right.out


class Unsure(ReferenceBackend):
    """A backend that raises where it is asked what it supports."""

    def supports(self, node: Tensor) -> bool:
        raise RuntimeError("no table of kernels")


def test_what_a_backend_raises_is_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(backends._BUILT_IN, unsure=lambda n: Unsure())
    monkeypatch.setattr(backends, "_BUILT_IN", known)
    done = run("test-ops", "--backend", "unsure", "--op", "roll", "--filter", "view", "--graphs", 1)
    assert done.code == 1
    assert "FAIL roll" in done.err and "     RuntimeError: no table of kernels" in done.err
    assert "failed when planned: RuntimeError: no table of kernels" in done.err


def test_json_has_a_line_for_each_test(run: Run) -> None:
    done = run("test-ops", "--op", "roll", "--json")
    results = [json.loads(line) for line in done.out.splitlines()]
    assert len(results) == sum(case.op == "roll" for case in CASES)
    assert {result["status"] for result in results} == {"pass"}
    assert set(results[0]) == {"id", "op", "status", "message", "seconds"}


def test_a_list_and_a_seed(run: Run) -> None:
    listed = run("test-ops", "--op", "roll", "--list").out.splitlines()
    assert listed == [case.id for case in CASES if case.op == "roll"]
    assert run("test-ops", "--backend", "reference", "--op", "roll", "--seed", 5).code == 0


def test_skips_have_reasons_and_can_be_counted(run: Run) -> None:
    done = run("test-ops", "--backend", "cpu", "--op", "map_custom1")
    assert done.code == 0
    assert "skipped 3: cpu does not support map_custom1" in done.out
    expected = run("test-ops", "--backend", "cpu", "--op", "map_custom1", "--expect-skips", 3)
    assert expected.code == 0
    other = run("test-ops", "--backend", "cpu", "--op", "map_custom1", "--expect-skips", 0)
    assert other.code == 1 and "--expect-skips says 0" in other.err


def test_random_graphs(run: Run) -> None:
    done = run("test-ops", "--backend", "reference", "--op", "roll", "--graphs", 5)
    assert done.code == 0
    assert "5 random graphs, alone and split: no difference" in done.out


def test_speed_beside_the_machine(run: Run) -> None:
    done = run("test-ops", "--mode", "perf", "--op", "rms_norm", "--filter", "2048,1", "--json")
    (result,) = [json.loads(line) for line in done.out.splitlines()]
    assert result["time_us"] > 0 and result["n_runs"] >= 3
    assert {"bytes_per_s", "flops", "limit", "share", "backend"} <= set(result)


@pytest.mark.parametrize("first", ["cpu", "mock"])  # also of a device, whose memory holds the state
def test_two_backends_on_a_model(run: Run, first: str) -> None:
    done = run("test-ops", "--compare", first, "reference")
    assert done.code == 0
    assert "0 beyond their bounds, 0 not supported" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "["], "'[' is not a regular expression"),
        (["--op", "nothing"], "no test has such an op and name"),
        (["--mode", "fast"], "'fast' is not one of"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], message: str) -> None:
    assert message in run("test-ops", *arguments).usage_error


def test_what_cannot_be_used(run: Run, tmp_path: Path) -> None:
    assert "no backend 'nope'" in run("test-ops", "--backend", "nope").error
    damaged = tmp_path / "case.npz"
    damaged.write_bytes(b"nothing")
    assert "not a saved case" in run("test-ops", "--replay", damaged).error
    assert "there is no such file" in run("test-ops", "--replay", tmp_path / "none.npz").error
    graph = tmp_path / "graph.json"
    for content in ("nothing", "[]", "{}", '{"nodes": [["y", "no_op", [], {}]]}'):
        graph.write_text(content)
        assert "graph.json: not a saved graph: " in run("test-ops", "--replay", graph).error


def test_the_page_of_ops_is_current(run: Run, tmp_path: Path) -> None:
    """Written anew by `ggmlpy test-ops --mode support -o docs/ops.md`."""
    written = tmp_path / "ops.md"
    assert run("test-ops", "--mode", "support", "-o", written).code == 0
    assert written.read_text() == (ROOT / "docs" / "ops.md").read_text()


def test_the_page_says_what_is_supported_in_part() -> None:
    cases = [case for case in CASES if case.op in ("map_custom1", "roll")]
    names = ["reference", "cpu"]
    page = support_page(names, support_of([get_backend(name) for name in names], cases))
    assert "| `map_custom1` | f32 | 3 | yes |  |" in page
    n_rolls = sum(case.op == "roll" for case in CASES)
    assert f"| `roll` | f32 | {n_rolls} | yes | yes |" in page
