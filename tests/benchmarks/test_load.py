"""The load benchmark: figures of both engines from fresh processes, the other one made up here."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

import ggmlpy
from benchmarks.load import measure, show

PEER = """
import time

class Llama:
    def __init__(self, model_path, n_ctx, n_threads, verbose):
        assert (n_ctx, n_threads, verbose) == (64, 1, False)
        self.memory = bytearray(400 << 20)
        time.sleep(0.5)

    def tokenize(self, text):
        assert text == b"Hello"
        return [1, 2]

    def __call__(self, prompt, max_tokens, temperature):
        assert (prompt, max_tokens, temperature) == ([1, 2], 1, 0)
"""


def python_with_peer(folder: Path) -> str:
    """An interpreter that finds a `llama_cpp` which is slow and large."""
    (folder / "llama_cpp.py").write_text(PEER)
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return str(command)


@pytest.mark.skipif(sys.platform == "win32", reason="the made-up interpreter is a shell script")
def test_both_engines_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ggmlpy.packaged_model()
    figures = measure(str(model), python_with_peer(tmp_path), 64, 1, 1)
    ours, peer = figures["ggmlpy"], figures["llama.cpp"]
    assert ours["load_s"] > 0
    assert ours["import_s"] > 0
    assert peer["load_s"] >= 0.5
    assert 20e6 < ours["peak_bytes"] < peer["peak_bytes"]
    assert peer["peak_bytes"] >= 400 << 20
    assert figures["load_ratio"] == ours["load_s"] / peer["load_s"]
    assert ours["kv_bytes"] > 0
    assert ours["compute_bytes"] > 0
    assert figures["file_bytes"] == model.stat().st_size
    show(figures)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "import", "ggmlpy", "llama.cpp", "ratio", "file",
    ]  # fmt: skip


def test_a_model_that_does_not_load_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)ggmlpy did not load .*MissingFile"):
        measure(str(tmp_path / "none.gguf"), None, 64, 1, 1)
