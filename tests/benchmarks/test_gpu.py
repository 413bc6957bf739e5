"""The GPU benchmark without a device: its order by time, resuming, what fails, the table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import gpu_measure as measure
from benchmarks import gpu_run, gpu_worker
from benchmarks.gpu import file_of, main, parse
from benchmarks.gpu_device import Device, repeated
from benchmarks.gpu_libraries import Torch
from benchmarks.gpu_measure import QUICK, Sizes
from benchmarks.gpu_ops import Attention
from benchmarks.gpu_parts import Settings, part_table
from benchmarks.gpu_report import Figures, Line, markdown, table
from benchmarks.gpu_run import MARGIN_S, Part, Report, Results, Runner, WorkerEnded, chosen
from benchmarks.gpu_tests import run_all, selected, spread
from benchmarks.gpu_worker import Bench, Broken, Notes, NotHere, ProcessWorker, measured
from ggmlpy.backends.cuda.nvrtc import nvrtc
from ggmlpy.conformance.suite import Result, Status
from ggmlpy.errors import BackendError
from tests.cuda.fake_cupy import FakeCupy

pytestmark = pytest.mark.quick

ABOUT = {"device": "NVIDIA H100", "settings": "an H100", "versions": {"NVRTC": "12.9"}}


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedWorker:
    """Each part takes some seconds and ends as it is told; an exception ends the process."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)
    ends: dict[str, list[Report | WorkerEnded]] = field(default_factory=dict)
    log: list[tuple[str, Any, float]] = field(default_factory=list)
    n_restarts: int = 0

    def measure(
        self, name: str, before: dict[str, Any], limit_s: float, silence_s: float | None = None
    ) -> Iterator[Report]:
        self.log.append((name, dict(before), limit_s))
        self.clock.now += self.seconds.get(name, 1.0)
        end = self.ends[name].pop(0) if self.ends.get(name) else Report("done", {"x": 1})
        if isinstance(end, WorkerEnded):
            yield Report(None, {"running": "a test"})
            raise end
        yield end

    def restart(self) -> None:
        self.n_restarts += 1


def results(tmp_path: Path, resume: bool = False, device: str = "NVIDIA H100") -> Results:
    return Results(tmp_path / "gpu.json", ABOUT | {"device": device}, {"format": 1}, resume)


def statuses(found: Results) -> dict[str, str]:
    return {name: entry["status"] for name, entry in found.parts.items()}


def run(found: Results, worker: ScriptedWorker, total_s: float, *parts: Part) -> None:
    Runner(found, worker, total_s, clock=worker.clock).run(parts)


# --- order and time -----------------------------------------------------------------------------


def test_parts_that_do_not_fit_are_left_out_and_later_ones_that_do_are_measured(
    tmp_path: Path,
) -> None:
    worker, found = ScriptedWorker(Clock(), {"a": 40.0, "c": 10.0}), results(tmp_path)
    parts = [Part("a", "", 30), Part("b", "", 30), Part("c", "", 10)]
    run(found, worker, 60 + MARGIN_S, *parts)
    assert statuses(found) == {"a": "done", "b": "not reached", "c": "done"}
    assert [name for name, *_ in worker.log] == ["a", "c"]


def test_the_last_part_has_its_share_of_the_time(tmp_path: Path) -> None:
    worker, found = ScriptedWorker(Clock(), {"a": 30.0}), results(tmp_path)
    last = Part("last", "", 5, share=0.4, is_last=True)
    run(found, worker, 100 + MARGIN_S, Part("a", "", 5), Part("b", "", 30), last)
    assert statuses(found) == {"a": "done", "b": "not reached", "last": "done"}
    assert worker.log[-1][0] == "last"
    assert worker.log[-1][2] == 70.0  # all that is left


def test_a_part_may_take_a_multiple_of_its_estimate_or_its_share(tmp_path: Path) -> None:
    worker, found = ScriptedWorker(Clock()), results(tmp_path)
    run(found, worker, 1000, Part("a", "", 30), Part("b", "", 1), Part("c", "", 1, share=0.2))
    assert [limit for *_, limit in worker.log] == [120.0, 60.0, 200.0]


def test_parts_are_chosen_by_globs() -> None:
    parts = Settings("cuda").parts()
    assert chosen(parts, []) == parts
    names = [part.name for part in chosen(parts, ["decode*", "ceilings"])]
    assert names == ["ceilings", *(f"decode {t}" for t in ("f16", "q8_0", "q4_0", "q4_K", "q6_K"))]


def test_names_of_parts_are_unique_and_estimates_fit_into_the_default_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.gpu_parts.default_n_threads", lambda: 16)
    parts = Settings("cuda").parts()
    assert len({part.name for part in parts}) == len(parts)
    shares = sum(part.share or 0.0 for part in parts)
    assert shares == pytest.approx(0.3)
    assert sum(p.estimate_s for p in parts if not p.share) + MARGIN_S + 540 * shares < 540
    assert len(part_table(QUICK, 0.3)) <= len(parts)
    without = [part.name for part, _ in part_table(Sizes(), 0.0)]
    assert without == [part.name for part in parts if not part.name.startswith("tests")]


# --- the file, and going on ---------------------------------------------------------------------


def test_a_later_run_measures_what_is_missing(tmp_path: Path) -> None:
    worker = ScriptedWorker(Clock(), {"a": 50.0})
    worker.ends = {"c": [Report("failed", {"y": 2}, "KernelError: no")]}
    parts = [Part("a", "", 10), Part("b", "", 50), Part("c", "", 1), Part("d", "", 1)]
    worker.ends["d"] = [Report("skipped", {}, "only for CUDA")]
    run(results(tmp_path), worker, 70 + MARGIN_S, *parts)
    again = results(tmp_path, resume=True)
    assert statuses(again) == {"a": "done", "b": "not reached", "c": "failed", "d": "skipped"}
    assert again.parts["c"]["error"] == "KernelError: no"
    worker.log.clear()
    run(again, worker, 200, *parts)
    assert [(name, before) for name, before, _ in worker.log] == [("b", {}), ("c", {"y": 2})]
    assert set(statuses(results(tmp_path, resume=True)).values()) == {"done", "skipped"}


def test_a_run_without_resume_begins_anew(tmp_path: Path) -> None:
    run(results(tmp_path), ScriptedWorker(Clock()), 100, Part("a", "", 1), Part("b", "", 1))
    fresh = results(tmp_path)
    run(fresh, ScriptedWorker(Clock()), 100, Part("b", "", 1))
    assert statuses(results(tmp_path, resume=True)) == {"b": "done"}


def test_what_was_measured_stays_where_a_later_run_does_not_reach_it(tmp_path: Path) -> None:
    found = results(tmp_path)
    found.put("a", Report("partial", {"rows": [1]}), 1.0)
    run(found, ScriptedWorker(Clock()), MARGIN_S, Part("a", "", 1))
    assert statuses(found) == {"a": "partial"}
    assert found.values("a") == {"rows": [1]}


def test_results_of_another_device_or_of_other_settings_are_refused(tmp_path: Path) -> None:
    results(tmp_path).put("a", Report("done", {}), 1.0)
    with pytest.raises(ValueError, match="is of NVIDIA H100, this is NVIDIA A100"):
        results(tmp_path, resume=True, device="NVIDIA A100")
    with pytest.raises(ValueError, match="other settings"):
        Results(tmp_path / "gpu.json", ABOUT, {"format": 2}, resume=True)


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    found = results(tmp_path)
    found.put("a", Report(None, {"x": 1}), 1.0)
    assert json.loads(found.path.read_text())["parts"]["a"]["status"] == "partial"
    found.put("a", Report("done", {"x": 2}), 1.0)
    assert json.loads(found.path.read_text())["parts"]["a"]["values"] == {"x": 2}
    assert list(tmp_path.iterdir()) == [found.path]


# --- what fails ---------------------------------------------------------------------------------


def test_a_failing_part_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    worker, found = ScriptedWorker(Clock()), results(tmp_path)
    broken = Report("failed", {"x": 1}, "BackendError: illegal address", is_healthy=False)
    worker.ends = {"a": [broken], "b": [WorkerEnded("exit code -11")]}
    run(found, worker, 200, Part("a", "", 1), Part("b", "", 1), Part("c", "", 1))
    assert statuses(found) == {"a": "failed", "b": "failed", "c": "done"}
    assert found.parts["b"]["error"] == "exit code -11"
    assert found.values("b") == {"running": "a test"}  # what it has told before
    assert worker.n_restarts == 2


def test_a_part_that_can_goes_on_in_a_new_process(tmp_path: Path) -> None:
    worker, found = ScriptedWorker(Clock()), results(tmp_path)
    again = Report("again", {"n_done": 3}, "add broke the device", is_healthy=False)
    worker.ends = {"tests": [again, WorkerEnded("hangs"), Report("done", {"n_done": 9})]}
    run(found, worker, 200, Part("tests", "", 1, goes_on=True))
    assert statuses(found) == {"tests": "done"}
    assert [before for _, before, _ in worker.log] == [{}, {"n_done": 3}, {"running": "a test"}]
    assert worker.n_restarts == 2


def test_a_part_does_not_go_on_for_ever(tmp_path: Path) -> None:
    worker, found = ScriptedWorker(Clock()), results(tmp_path)
    ends: list[Report | WorkerEnded] = [WorkerEnded("hangs")] * 100
    worker.ends = {"tests": ends}
    run(found, worker, 1000, Part("tests", "", 1, goes_on=True))
    assert len(worker.log) == 1 + gpu_run.MAX_AGAIN
    assert statuses(found) == {"tests": "partial"}


def test_whatever_a_part_raises_is_its_report() -> None:
    def raising(error: Exception) -> Report:
        def part(notes: Notes) -> None:
            notes.add(x=1)
            raise error

        return measured(Bench({}, {"part": part}, lambda: True), "part", Notes({}, 10.0))

    failed = raising(ZeroDivisionError("by zero"))
    assert (failed.status, failed.values) == ("failed", {"x": 1})
    assert failed.error.startswith("ZeroDivisionError: by zero\nTraceback")
    assert raising(NotHere("no cuBLAS")) == Report("skipped", {"x": 1}, "no cuBLAS")
    assert raising(Broken("gone")).status == "again"
    assert raising(gpu_worker.OutOfTime()).status == "partial"


def test_rows_are_kept_until_the_time_is_over() -> None:
    sent: list[Report] = []
    notes = Notes({"rows": [{"n": 1, "us": 5.0}]}, 0.0, sent.append)
    assert notes.has_row(n=1)
    assert not notes.has_row(n=2)
    with pytest.raises(gpu_worker.OutOfTime):
        notes.add_row(n=2, us=6.0)
    assert sent[-1].values["rows"] == [{"n": 1, "us": 5.0}, {"n": 2, "us": 6.0}]


# --- processes ----------------------------------------------------------------------------------


def open_toy(settings: str) -> Bench:
    """A device that fails in all ways; a process of its own runs it."""

    def fails(notes: Notes) -> None:
        raise ValueError("no")

    def dies(notes: Notes) -> None:
        notes.add(x=1)
        os._exit(3)

    def hangs(notes: Notes) -> None:
        time.sleep(60)

    def works(notes: Notes) -> None:
        notes.add(pid=os.getpid())

    if settings == "none":
        raise OSError("there is no GPU")
    parts = {"fails": fails, "dies": dies, "hangs": hangs, "works": works}
    return Bench({"device": "toy"}, parts, lambda: True)


def test_a_process_is_replaced_when_it_dies_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_worker, "END_S", 0.1)
    with ProcessWorker(open_toy, "") as worker:
        assert worker.about == {"device": "toy"}
        (failed,) = worker.measure("fails", {}, 10.0)
        assert failed.status == "failed"
        first = list(worker.measure("works", {}, 10.0))[-1].values["pid"]
        told = worker.measure("dies", {}, 10.0)
        assert next(told).values == {"x": 1}
        with pytest.raises(WorkerEnded, match="exit code 3"):
            next(told)
        worker.restart()
        with pytest.raises(WorkerEnded, match="did not end in time"):
            list(worker.measure("hangs", {}, 10.0, silence_s=3.0))
        worker.restart()
        assert list(worker.measure("works", {}, 10.0))[-1].values["pid"] != first


def test_no_device_is_one_line() -> None:
    with pytest.raises(WorkerEnded, match="OSError: there is no GPU"):
        ProcessWorker(open_toy, "none")


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


# --- the libraries of a GPU, on the host --------------------------------------------------------


class HostArray:
    """An array of CuPy."""

    def __init__(self, shape: tuple[int, int], dtype: Any) -> None:
        self.values = np.zeros(shape, dtype)

    def set(self, values: NDArray[Any]) -> None:
        assert values.flags.c_contiguous
        self.values[:] = values

    @property
    def T(self) -> HostArray:
        made = HostArray((1, 1), self.values.dtype)
        made.values = self.values.T
        return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy whose products are those of the host; there is no PyTorch."""
    try:
        nvrtc()
    except BackendError as error:
        pytest.skip(str(error))
    found: Any = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setitem(sys.modules, "torch", None)

    def matmul(x: HostArray, w: HostArray, out: HostArray) -> None:
        np.matmul(x.values, w.values, out=out.values)

    found.__version__ = "14.2"
    found.empty, found.matmul = HostArray, matmul
    found.cuda.runtime.runtimeGetVersion = lambda: 13020
    found.cuda.Device = lambda index: SimpleNamespace(use=lambda: None)
    found.cuda.get_current_stream = lambda: SimpleNamespace(synchronize=lambda: None)
    found.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    return found


def test_a_gpu_tells_what_it_is_and_its_ceilings(fake: Any) -> None:
    device = Device("cuda", QUICK.effort)
    about = device.about()
    assert about["device"].startswith("NVIDIA")
    assert about["versions"]["CuPy"] == "14.2"
    assert about["versions"]["CUDA of CuPy"] == "13.2"
    assert about["versions"]["NVRTC"][0].isdigit()
    assert device.is_healthy()
    notes = Notes({}, 60.0)
    measure.ceilings(device, QUICK, notes)
    assert notes.values["copy_gbs"] > 0
    assert notes.values["upload_gbs"] > 0
    assert notes.values["f16_tflops"] == notes.values["products"]["cuBLAS (CuPy)"]
    assert list(notes.values["missing"]) == ["PyTorch"]
    fake.failures["memcpyAsync"] = 700  # an illegal address, of which CUDA does not recover
    assert not device.is_healthy()


def test_without_cublas_the_peak_is_unknown(fake: Any) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("libcublas.so.13: cannot open shared object file")

    fake.matmul = missing
    notes = Notes({}, 60.0)
    measure.ceilings(Device("cuda", QUICK.effort), QUICK, notes)
    assert notes.values["f16_tflops"] is None
    assert "libcublas.so.13" in notes.values["missing"]["cuBLAS (CuPy)"]


def test_pytorch_is_asked_for_products_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def sdpa(q: Any, k: Any, v: Any, **options: Any) -> None:
        asked.append((q.shape, k.shape, options))

    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True,
            set_device=asked.append,
            synchronize=lambda: None,
            empty_cache=lambda: None,
        ),
        float16="f16",
        randn=lambda shape, dtype, device: np.ones(shape, np.float16),
        matmul=np.matmul,
        nn=SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=sdpa)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    library = Torch(QUICK.effort, 1)
    assert asked == [1]
    assert library.seconds(library.product(8, 16, 4, 2)) > 0
    library.attention(64, 32, 8, n_query=5, n_kv=5, n_seqs=2)[0]()
    options = {"is_causal": True, "enable_gqa": True}
    assert asked[1:] == [((2, 32, 5, 64), (2, 8, 5, 64), options)]
    library.release()


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
