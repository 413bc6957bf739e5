"""The GPU benchmark without a device: its tests, what it counts, its report, the command."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import file_of, main, parse
from benchmarks.gpu_device import repeated
from benchmarks.gpu_measure import Sizes
from benchmarks.gpu_ops import Attention
from benchmarks.gpu_report import Figures, Line, markdown, table
from benchmarks.gpu_run import Report
from benchmarks.gpu_tests import run_all, selected, spread
from benchmarks.gpu_worker import Broken, Notes
from ggmlpy.conformance.suite import Result, Status

pytestmark = pytest.mark.quick

ABOUT = {"device": "NVIDIA H100", "settings": "an H100", "versions": {"NVRTC": "12.9"}}


# --- the conformance table ----------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    __test__ = False

    id: str
    op: str = "add"


def outcome(test: Any, status: Status = Status.PASS, message: str = "") -> Result:
    return Result(test.id, test.op, status, message, 0.0)


TESTS: list[Any] = [Test(f"test {i}") for i in range(5)]


def test_tests_go_on_where_they_ended() -> None:
    def run(test: Any) -> Result:
        ran.append(test.id)
        return outcome(test, *ends.get(test.id, ()))

    ends = {"test 1": (Status.FAIL, "NMSE 1"), "test 2": (Status.SKIP, "cuda has no add of f64")}
    ran: list[str] = []
    notes = Notes({}, 10.0)
    with pytest.raises(Broken, match="test 1"):
        run_all(TESTS, notes, run, is_healthy=lambda: False)
    later = Notes(json.loads(json.dumps(notes.values)), 10.0)
    run_all(TESTS, later, run, is_healthy=lambda: True)
    assert ran == [test.id for test in TESTS]
    found = later.values
    assert (found["n_done"], found["pass"], found["fail"], found["skip"]) == (5, 3, 1, 1)
    assert found["failures"] == [{"id": "test 1", "op": "add", "message": "NMSE 1"}]
    assert found["skipped"] == {"cuda has no add": 1}


def test_a_test_that_ended_its_process_has_failed() -> None:
    notes = Notes({}, 10.0)
    values = {"n_tests": 5, "n_done": 2, "pass": 2, "fail": 0, "skip": 0}
    notes.values |= values | {"failures": [], "skipped": {}, "running": "test 2"}
    run_all(TESTS, notes, outcome, is_healthy=lambda: True)
    assert (notes.values["pass"], notes.values["fail"]) == (4, 1)
    assert notes.values["failures"][0]["id"] == "test 2"


def test_results_of_another_table_are_dropped() -> None:
    notes = Notes({"n_tests": 4, "n_done": 4, "pass": 4}, 10.0)
    run_all(TESTS, notes, outcome, is_healthy=lambda: True)
    assert notes.values["pass"] == 5


def test_the_first_tests_are_a_sample_of_all_ops() -> None:
    tests: list[Any] = [Test(f"{op} {i}", op) for op, n in (("a", 8), ("b", 4)) for i in range(n)]
    ops = [test.op for test in spread(tests)]
    assert (ops[:6].count("a"), ops[:6].count("b")) == (4, 2)
    assert sorted(ops) == ["a"] * 8 + ["b"] * 4


def test_each_test_of_the_table_is_in_one_selection() -> None:
    from ggmlpy.conformance.table import all_tests

    ids = [test.id for of_models in (True, False) for test in selected(of_models)]
    assert sorted(ids) == sorted(test.id for test in all_tests())


# --- what is counted and shown ------------------------------------------------------------------


def test_a_run_is_timed_over_many() -> None:
    n_runs = [0]

    def submit() -> None:
        n_runs[0] += 1
        time.sleep(0.001)

    assert 0.001 <= repeated(submit, lambda: None, least_s=0.01, n_times=3) < 0.1
    assert n_runs[0] > 20


def test_attention_counts_the_pairs_that_are_seen() -> None:
    decode = Attention(128, 32, 8, n_query=1, n_kv=4096, n_seqs=32)
    assert decode.n_bytes == 32 * 4096 * 8 * 2 * 128 * 2
    assert decode.n_flops == 4 * 128 * 32 * 32 * 4096
    prompt = Attention(64, 4, 2, n_query=8, n_kv=8, n_seqs=1)
    assert prompt.n_flops == 4 * 64 * 4 * (8 * 9 / 2)
    assert Sizes().attention[0] == decode


def entry(**values: Any) -> dict[str, Any]:
    date = "2026-11-25T12:00:00+00:00"
    return {"status": "done", "values": values, "seconds": 1.0, "date": date, "commit": "abc"}


def example() -> dict[str, Any]:
    step = {"step_us": 900.0, "device_us": 870.0, "host_us": 30.0}
    parts = {
        "ceilings": entry(copy_gbs=3000.0, f16_tflops=700.0, products={"cuBLAS (CuPy)": 700.0}),
        "decode f16": entry(tokens_per_s=170.0, gbs=2550.0, **step),
        "decode q4_0": entry(tokens_per_s=400.0, gbs=1500.0, **step),
        "prompt q4_0": entry(rows=[{"n": 512, "tokens_per_s": 2e4, "tflops": 350.0}]),
        "streams at 4096": entry(
            rows=[
                {"n": 32, "type": "q4_0", "tokens_per_s": 1e3, "gbs": 2000.0, **step},
                {"n": 128, "type": "q4_0", "does_not_fit": "68,000 MB"},
            ]
        ),
        "layouts": entry(
            rows=[
                {"layout": "split", "n": 32, "depth": 4096, "gbs": 2000.0, "step_us": 10.0},
                {"layout": "paged", "n": 32, "depth": 4096, "gbs": 1000.0, "step_us": 20.0},
            ]
        ),
        "tests of models' ops": entry(
            n_tests=9, n_done=8, skip=1, fail=1, failures=[{"id": "add|f32", "message": "NaN"}],
            **{"pass": 6},
        ),
        "kernels": entry(
            n_units=1, arch="sm_90a",
            taken=[["norm.cu", "rms_norm", 40, 0, 32], ["a.cu", "attend", 250, 128, 0]],
        ),
        "upload": {"status": "failed", "values": {}, "error": "OSError: disk\nTraceback …"},
        "compile": {"status": "not reached", "values": {}},
    }  # fmt: skip
    return {"about": ABOUT, "settings": {"is_quick": False}, "parts": parts}


def test_figures_are_held_against_ceilings_and_targets() -> None:
    lines = {line.what: line for line in Figures(example()).lines()}
    assert lines["decode, f16"].value == 0.85
    assert lines["decode, f16"].verdict == "yes"
    assert lines["decode, q4_0"].verdict == "**no**"
    assert lines["prompt of 512, q4_0"].value == 0.5
    assert lines["prompt of 512, q4_0"].verdict == "yes"
    assert lines["32 sequences at 4096, q4_0"].verdict == "**no**"
    assert lines["32 sequences at 4096, paged"].value == 2.0
    assert not any("128 sequences" in what for what in lines)


def test_figures_without_ceilings_are_shown_alone() -> None:
    found = example()
    del found["parts"]["ceilings"]
    line = next(line for line in Figures(found).lines() if line.what == "decode, f16")
    assert (line.value, line.verdict, line.value_text) == (None, "", "")


def test_the_whole_report() -> None:
    text = markdown(example())
    assert text.startswith("# GPU benchmark: NVIDIA H100\n")
    assert "| decode, f16 | 170 t/s | 85% | of bandwidth | ≥ 80% | yes |" in text
    assert "6 passed, 1 failed, 1 skipped; 8 of 9 ran" in text
    assert "- `add|f32`: NaN" in text
    assert "| attend | 250 | 128 | 0 |" in text
    assert "rms_norm" not in text
    assert "- upload: failed, OSError: disk\n- compile: not reached\n" in text


def test_a_dry_run_is_judged_by_no_target() -> None:
    line = Line("decode", "1 t/s", 0.1, "of bandwidth", 0.8)
    assert "no" in table([line])[-1]
    assert "no" not in table([line], is_judged=False)[-1]
    found = example()
    found["settings"]["is_quick"] = True
    assert "no figure means anything" in markdown(found)


# --- the command --------------------------------------------------------------------------------


def test_names_of_files() -> None:
    folder = Path("results")
    name = "NVIDIA H100 80GB HBM3"
    assert file_of(folder, name, False) == folder / "gpu_nvidia_h100_80gb_hbm3.json"
    assert file_of(folder, "A100", True) == folder / "gpu_a100_quick.json"


def test_parts_are_listed_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "decode*,tests*"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 7
    assert "12% of the time" in shown[0]


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--minutes", "0"], ["--tests", "2"]):
        with pytest.raises(SystemExit):
            parse(wrong)
        assert wrong[0] in capsys.readouterr().err
    assert main(["--only", "nothing"]) == 1
    assert "nothing" in capsys.readouterr().err


def test_the_whole_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class InThisProcess:
        """A worker without a process."""

        about = ABOUT

        def __init__(self, *_: object) -> None: ...

        def measure(self, name: str, *_: object) -> Iterator[Report]:
            yield Report("failed" if name == "decode q8_0" else "done", {})

        def restart(self) -> None: ...

        def __enter__(self) -> InThisProcess:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("benchmarks.gpu.ProcessWorker", InThisProcess)
    arguments = ["--only", "decode*", "--output", str(tmp_path)]
    assert main(arguments) == 1
    found = json.loads((tmp_path / "gpu_nvidia_h100.json").read_text())
    assert {entry["status"] for entry in found["parts"].values()} == {"done", "failed"}
    assert "decode q8_0: failed" in (tmp_path / "gpu_nvidia_h100.md").read_text()
    assert main(["--only", "ceilings", "--output", str(tmp_path)]) == 1  # the others are kept
    found = json.loads((tmp_path / "gpu_nvidia_h100.json").read_text())
    assert len(found["parts"]) == 6
