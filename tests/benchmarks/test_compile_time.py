"""The benchmark of compiling, on three functions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import compile_time
from ggmlpy.backends.cpu import runner
from ggmlpy.backends.cpu.choose import choose
from ggmlpy.backends.cpu.kernel import Kernel, all_entries

SOME = [runner.run, runner.serve, choose]


def test_everything_is_compiled() -> None:
    entries = set(all_entries())
    assert set(SOME) < set(entries)
    kernels = {entry.op for entry in entries if isinstance(entry, Kernel)}
    assert {"mul_mat", "flash_attn_ext", "get_rows"} <= kernels


def test_figures_are_shown_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "compile_time.json"
    monkeypatch.setattr(compile_time, "all_entries", lambda: SOME)
    monkeypatch.setattr(compile_time, "RESULTS", results)
    monkeypatch.setattr(sys, "argv", ["compile_time.py", "--isa", "generic", "--save"])
    assert compile_time.main() == 0
    assert "generic" in capsys.readouterr().out
    (saved,) = json.loads(results.read_text()).values()
    assert saved["n_compiled"] == len(SOME)
    assert saved["mb"] > 0
    assert saved["cpu_s"] > 0
    assert saved["wall_s"] > 0


def test_an_unknown_instruction_set_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_time.py", "--isa", "sse5"])
    assert compile_time.main() != 0
    assert "instruction set 'sse5' cannot be used" in capsys.readouterr().err
