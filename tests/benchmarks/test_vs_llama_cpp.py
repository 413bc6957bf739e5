"""Both engines in turns: what is asked of them, what is made of the answers. Nothing is timed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import engines, report
from benchmarks import vs_llama_cpp as module
from benchmarks.agreement import nmse
from benchmarks.engines import EngineError, EngineProcess
from benchmarks.vs_llama_cpp import (
    Bench,
    Figure,
    FreshProcesses,
    Settings,
    as_entry,
    main,
    parse,
    show,
)
from ggmlpy.common import own_folder
from tests.benchmarks.toys import CannedEngine

SETTINGS = Settings(
    tests=module.TESTS, n_repeat=2, n_threads=1, n_prompt=20, n_decode=5, streams=[4],
    n_stream_steps=3, stream_depth=10,
)  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_bandwidth", lambda n_threads: 1e6)


def canned(log: list[Any]) -> list[EngineProcess]:
    return [CannedEngine("ggmlpy", 0.01, log), CannedEngine("llama.cpp", 0.02, log)]


def test_each_test_is_run_in_turns(tmp_path: Path) -> None:
    log: list[Any] = []
    figures = list(Bench(tmp_path / "m.gguf", SETTINGS, canned(log)).run())
    assert [figure.test for figure in figures] == ["prompt 20", "4 streams"]
    prompt, streams = figures
    assert prompt.samples == {"ggmlpy": [20.0] * 2, "llama.cpp": [20.0] * 2}
    assert streams.advantage() == pytest.approx(2)
    assert streams.median("llama.cpp") == pytest.approx(4 / 0.02)
    assert streams.token_bytes == (1000 + 4 * 12) / 4
    steps = [(entry[0], entry[2]) for entry in log if entry[1] == "decode"]
    assert [name for name, _ in steps] == ["ggmlpy", "llama.cpp"] * 3
    assert [asked["n_steps"] for _, asked in steps] == [1] * 2 + [3] * 4
    assert {(asked["n_seqs"], asked["depth"]) for _, asked in steps} == {(4, 10)}
    contexts = [entry[2] for entry in log if entry[1] == "open"]
    assert [(c["n_ctx"], c["n_seq_max"], c["layout"]) for c in contexts] == (
        [(20, 1, "split")] * 2 + [(4 * 13, 4, "split")] * 2
    )


def test_only_what_is_wished_is_run(tmp_path: Path) -> None:
    log: list[Any] = []
    settings = Settings(("prompt",), 1, 1, 20, 5, [4], 3, 10)
    (figure,) = Bench(tmp_path / "m.gguf", settings, canned(log)[:1]).run()
    assert figure.advantage() is None
    assert figure.samples.keys() == {"ggmlpy"}
    assert {entry[0] for entry in log} == {"ggmlpy"}
    assert "prepare" not in {entry[1] for entry in log}
    fresh_only = Settings(("load", "decode"), 1, 1, 20, 5, [4], 3, 10)
    assert list(Bench(tmp_path / "m.gguf", fresh_only, canned(log)).run()) == []
    assert FreshProcesses(tmp_path / "m.gguf", settings).run("python", "cpu") == []


def test_loading_and_writing_have_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(1000))
    log: list[Any] = []
    monkeypatch.setattr(module, "started", lambda *_: iter(canned(log)))
    fresh = FreshProcesses(path, SETTINGS)
    decode, loaded, peak, surplus = fresh.run("python", "cpu")
    assert decode.median("ggmlpy") == pytest.approx(100)
    assert decode.advantage() == pytest.approx(2)
    assert decode.token_bytes == 1000 + 3  # half way through 5 steps
    assert loaded.samples == {"ggmlpy": [0.5] * 2, "llama.cpp": [0.5] * 2}
    assert peak.median("ggmlpy") == 3
    assert surplus.samples == {"ggmlpy": [3e6 / 6000] * 2}
    assert [entry[0] for entry in log if entry[1] == "close"] == ["ggmlpy", "llama.cpp"] * 3
    # Of the first ones, which bring the file into the page cache, nothing counts.
    assert sum(entry[1] == "first_token" for entry in log) == 6
    assert sum(entry[1] == "decode" for entry in log) == 8
    assert sum(entry[1] == "logits" for entry in log) == 2
    assert fresh.logits_nmse == 0
    assert len(fresh.bandwidths) == 2


def test_engines_that_compute_something_else_are_not_compared(tmp_path: Path) -> None:
    both = canned([])
    other = both[1]
    assert isinstance(other, CannedEngine)
    other.said = bytes(16)
    with pytest.raises(EngineError, match=r"do not compute the same: their logits of m.gguf"):
        list(Bench(tmp_path / "m.gguf", SETTINGS, both).run())
    other.said = bytes(8)
    with pytest.raises(EngineError, match="by an NMSE of inf"):
        list(Bench(tmp_path / "m.gguf", SETTINGS, both).run())


def test_openvino_is_a_second_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log: list[Any] = []
    other = CannedEngine(engines.OPENVINO, 0.04, log)
    other.said = json.dumps({"token": 2, "logprob": -np.log(4)}).encode()
    figures = list(Bench(tmp_path / "m.gguf", SETTINGS, [*canned(log), other]).run())
    assert figures[1].advantage() == pytest.approx(2)
    assert figures[1].advantage(engines.OPENVINO) == pytest.approx(4)
    show("m.gguf", figures, 16e9)
    assert "OpenVINO" in capsys.readouterr().out
    other.said = json.dumps({"token": 2, "logprob": -2.0}).encode()
    with pytest.raises(EngineError, match=r"likeliest token 2 has the log-probability -2.000"):
        list(Bench(tmp_path / "m.gguf", SETTINGS, [*canned(log), other]).run())


def test_a_file_that_openvino_cannot_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> float:
        raise EngineError("OpenVINO, load: no such type")

    engine = CannedEngine(engines.OPENVINO, 0.04, [])
    monkeypatch.setattr(EngineProcess, "openvino", lambda python: engine)
    assert module.readable("python", tmp_path / "m.gguf", 1) == ("python", "")
    assert module.readable(None, tmp_path / "m.gguf", 1) == (None, "")
    monkeypatch.setattr(engine, "_load", fail)
    kept, said = module.readable("python", tmp_path / "m.gguf", 1)
    assert kept is None
    assert said.endswith("cannot read m.gguf: OpenVINO, load: no such type")


def test_nmse_of_logits() -> None:
    a = np.array([3.0, 4.0])
    assert nmse(a, a) == 0
    assert nmse(a + 1, a) == pytest.approx(2 / 25)
    assert nmse(a, 0 * a) == nmse(a, a[:1]) == float("inf")


def test_an_advantage_is_more_of_a_rate_and_less_of_a_cost() -> None:
    samples = {"ggmlpy": [9.0, 4.0, 1.0], "llama.cpp": [2.0]}
    assert Figure("x", "t/s", samples).advantage() == 2
    assert Figure("x", "s", samples).advantage() == 0.5
    assert Figure("x", "MB", {"ggmlpy": [1.0]}).advantage() is None


def test_the_table_holds_what_reading_alone_would_allow(capsys: pytest.CaptureFixture[str]) -> None:
    samples = {"ggmlpy": [20.0], "llama.cpp": [10.0]}
    figures = [Figure("decode", "t/s", samples, token_bytes=4e8), Figure("load", "s", samples)]
    show("m.gguf", figures, 16e9)
    lines = capsys.readouterr().out.splitlines()
    (decode,) = (line for line in lines if "decode" in line)
    cells = [cell.strip() for cell in decode.strip("│").split("│")]
    assert cells == ["decode", "20.0", "10.0", "t/s", "2", "40.0", "8", "50%"]
    (entry, load) = as_entry(figures, 16e9)
    assert entry["bandwidth_share"] == 0.5
    assert entry["ceiling"] == 40
    assert load["bandwidth_share"] is None


def test_the_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ggmlpy against itself, in processes as they are, on a model made for it."""

    def itself(python: str) -> EngineProcess:
        other = EngineProcess.ours("reference")
        other.name = python
        return other

    monkeypatch.setattr(EngineProcess, "peer", itself)
    results = tmp_path / "results.json"
    results.write_text('{"another": {}}')
    arguments = [
        "--peer", "llama.cpp", "--model", "tiny", "--types", "f16", "--models", str(tmp_path),
        "--backend", "reference", "--repeat", "1", "--threads", "1", "--prompt-tokens", "4",
        "--decode-tokens", "2", "--streams", "2", "--stream-steps", "1", "--stream-depth", "3",
        "--save", str(results),
    ]  # fmt: skip
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "2 streams" in out
    assert "peak resident" in out
    saved = json.loads(results.read_text())
    assert saved.keys() == {"another", "tiny-f16"}
    entry = saved["tiny-f16"]
    assert entry["logits_nmse"] == 0
    assert [figure["test"] for figure in entry["figures"]] == [
        "prompt 4", "2 streams", "decode", "load to first token", "peak resident",
        "peak / (file + cache + graphs)",
    ]  # fmt: skip
    *both, surplus = entry["figures"]
    assert all(figure["advantage"] > 0 for figure in both)
    assert surplus["medians"]["ggmlpy"] > 1
    assert entry["model_bytes"] == (tmp_path / "tiny-f16.gguf").stat().st_size


def test_a_peer_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "tiny", "--types", "f16", "--models", str(tmp_path)]
    assert main([*arguments, "--backend", "reference", "--peer", str(tmp_path / "no")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: llama.cpp: cannot run ")


def test_a_file_that_is_no_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(7))
    assert main(["--model", str(tmp_path / "bad.gguf"), "--backend", "reference"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ggmlpy, load: GGUFError: ")


@pytest.mark.parametrize(
    "wrong", [["--only", "speed"], ["--types", "q9"], ["--model", "none.gguf"], ["--repeat", "0"]]
)
def test_what_there_is_not_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_commands_are_kept_without_the_folders_of_this_machine() -> None:
    root = str(engines.ROOT / "benchmarks" / "depth.py")
    kept = report.command([root, "/some/where/m.gguf", "--peer=/opt/x/python", "--depths", "0,512"])
    assert kept == "python benchmarks/depth.py m.gguf --peer=python --depths 0,512"
    several = f"/some/where/a.gguf,tiny,{engines.ROOT}/b.gguf"
    assert report.command(["x.py", "--model", several]) == "python x.py --model a.gguf,tiny,b.gguf"


def test_the_environment_is_kept_beside_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": "/root", "GGMLPY_CACHE_DIR": "/some/where"})
    assert report.about_run(1, [])["environment"] == {}
    os.environ["GGMLPY_PACKED_CACHE"] = "4"
    assert report.about_run(1, [])["environment"] == {"GGMLPY_PACKED_CACHE": "4"}


def test_models_are_kept_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_folder, "_FOLDER", str(tmp_path))
    assert parse([]).models == tmp_path / "models"
    assert parse(["--models", "here"]).models == Path("here")


def test_doubts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    both = canned([])
    assert report.warnings_of({"load_before": 0.1}, both) == []
    both[1]._idle_cpu_s = 0.5
    loud = report.warnings_of({"load_before": 3.0}, both)
    assert loud == [
        "the machine was not quiet: its load was 3.00 at the start",
        "llama.cpp used 50% of a core while it should have slept",
    ]
