"""Runs of the GPU benchmark without a device: their order by time, resuming, what fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_run, gpu_worker
from benchmarks.gpu_measure import QUICK, Sizes
from benchmarks.gpu_parts import Settings, part_table
from benchmarks.gpu_run import MARGIN_S, Part, Report, Results, Runner, WorkerEnded, chosen
from benchmarks.gpu_worker import Bench, Broken, Notes, NotHere, ProcessWorker, measured

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
