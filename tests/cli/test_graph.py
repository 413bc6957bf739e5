"""`ggmlpy graph`: every format, a part of the layers, and graphviz in all its moods."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from ggmlpy import GGUFFile, Graph
from ggmlpy.models import load_model
from ggmlpy.runtime.preview import build_graph
from tests.cli.conftest import Outcome, Run


def expected(model: Path, n_tokens: int = 1, n_past: int = 0, *, flash_attn: bool = True) -> Graph:
    return build_graph(load_model(GGUFFile.open(model)), n_tokens, n_past, flash_attn=flash_attn)


def dump(run: Run, *args: object) -> Outcome:
    outcome = run("graph", *args)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    return outcome


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, with a shell for scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def fake_dot(programs: Path, script: str) -> None:
    path = programs / "dot"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_text_dot_and_json_are_the_graphs_own(run: Run, tiny: Path) -> None:
    graph = expected(tiny)
    assert dump(run, "-m", tiny).out == f"{graph}\n"
    assert dump(run, "-m", tiny, "--format", "dot").out == graph.to_dot() + "\n"
    assert json.loads(dump(run, "-m", tiny, "--format", "json").out) == json.loads(graph.to_json())


def test_streams_of_equal_length_are_dimension_3(run: Run, tiny: Path) -> None:
    out = dump(run, "-m", tiny, "-n", 2, "-np", 3).out
    assert re.search(r"q-0 +f32 \[16, 2, 4, 3\]", out), out
    assert re.search(r"k-0 +f16 \[16, 256, 2, 3\]", out), out
    assert re.search(r"result_output +f32 \[\d+, 3\]", out), out


def test_a_mixture_is_shown_with_symbols(run: Run, tiny: Path) -> None:
    out = dump(run, "-m", tiny, "-n", 64, "-np", 4, "--mixture").out
    assert "T <= 64" in out
    assert "O <= 4" in out
    assert re.search(r"q-0 +f32 \[16, T, 4\]", out), out
    assert re.search(r"result_output +f32 \[\d+, O\]", out), out
    assert "T <= 512" in dump(run, "-m", tiny, "-np", 4, "--mixture").out
    refused = run("graph", "-m", tiny, "--mixture", "-fa", "off")
    assert refused.code == 1
    assert "needs flash attention" in refused.err


def test_the_ubatch_decides_the_graph(run: Run, tiny: Path) -> None:
    graph = expected(tiny, 7, 300, flash_attn=False)
    args = ("-n", 7, "--n-past", 300, "-fa", "off")
    out = dump(run, "-m", tiny, *args).out
    assert out == f"{graph}\n"
    assert re.search(r"inp_tokens +i32 \[7\]", out)
    assert "= soft_max" in out
    assert "f16 [32, 512] (STATE)" in out  # 307 cells, in steps of 256
    quantised = dump(run, "-m", tiny, *args, "-ctk", "f32", "-ctv", "bf16").out
    assert re.search(r"cache_k_l0 +f32 \[32, 512\]", quantised)
    assert re.search(r"cache_v_l0 +bf16 \[32, 512\]", quantised)


def test_the_format_follows_the_file_name(run: Run, tiny: Path, tmp_path: Path) -> None:
    for name, beginning in {
        "g.html": "<!DOCTYPE html>",
        "g.dot": "digraph",
        "g.json": '{"leafs"',
        "g.txt": "graph: ",
        "g.HTML": "<!DOCTYPE html>",
        "g": "graph: ",
    }.items():
        assert dump(run, "-m", tiny, "-o", tmp_path / name).out == ""
        assert (tmp_path / name).read_text().startswith(beginning)
    dump(run, "-m", tiny, "-o", tmp_path / "g.html", "--format", "json")
    json.loads((tmp_path / "g.html").read_text())


@pytest.mark.parametrize(
    ("layers", "kept"), [("0:2", "01"), ("0", "0"), ("1:", "1"), (":1", "0"), (":", "01")]
)
def test_some_layers(run: Run, tiny: Path, layers: str, kept: str) -> None:
    told = json.loads(dump(run, "-m", tiny, "--layers", layers, "--format", "json").out)
    whole = json.loads(expected(tiny).to_json())
    caches = tuple(f"cache_{kind}_l{i} (" for kind in "kv" for i in kept)
    ends = tuple(f"-{i}" for i in kept)
    names = [
        name for name in (n["name"] for n in whole["nodes"])
        if name.startswith(caches) or name.partition(" ")[0].endswith(ends)
    ]  # fmt: skip
    assert [n["name"] for n in told["nodes"]] == names
    weights = {n["name"] for n in told["leafs"] if "WEIGHT" in n["flags"]}
    prefixes = tuple(f"blk.{i}." for i in kept)
    assert weights == {
        n["name"] for n in whole["leafs"]
        if n["name"].startswith(prefixes) and "WEIGHT" in n["flags"]
    }  # fmt: skip
    read_from_outside = {"inp_embd"} if kept[0] == "0" else {"l_out-0"}
    assert read_from_outside < {n["name"] for n in told["leafs"]}


@pytest.mark.parametrize("layers", ["2", "1:1", "1:3", "-1:1", "a:b", "1:2:3", ""])
def test_layers_that_are_not_there(run: Run, tiny: Path, layers: str) -> None:
    message = run("graph", "-m", tiny, f"--layers={layers}").usage_error
    assert f"'{layers}' is not a range A:B within the 2 layers, 0:2" in message


def test_files_that_cannot_be_written(run: Run, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "none" / "g.html"
    error = run("graph", "-m", tiny, "-o", path).error
    assert error == f"{path}: the file cannot be written: No such file or directory"


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_svg(run: Run, tiny: Path, tmp_path: Path) -> None:
    dump(run, "-m", tiny, "--layers", 0, "-o", tmp_path / "g.svg")
    drawn = (tmp_path / "g.svg").read_text()
    assert "<svg" in drawn
    assert "Qcur-0" in drawn
    dump(run, "-m", tiny, "--layers", 0, "-o", tmp_path / "g.png")
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_graphviz_gets_the_dot_text(run: Run, tiny: Path, programs: Path) -> None:
    fake_dot(programs, 'echo "$@"; /bin/cat')
    for kind in ("svg", "png"):
        path = programs / f"g.{kind}"
        dump(run, "-m", tiny, "-o", path)
        assert path.read_text() == f"-T{kind}\n{expected(tiny).to_dot()}"


def test_without_graphviz(run: Run, tiny: Path, programs: Path) -> None:
    assert not list(programs.iterdir())
    error = run("graph", "-m", tiny, "--format", "svg").error
    assert error == (
        "svg needs graphviz, whose `dot` is not on PATH: write -o graph.dot, and draw it"
        " elsewhere with `dot -Tsvg graph.dot -o graph.svg`; html needs nothing"
    )
    missing = run("graph", "-m", tiny, "-o", programs / "g.png")
    assert missing.error.startswith("png needs graphviz")
    assert not list(programs.iterdir())


def test_suffixes_that_say_nothing(run: Run, tiny: Path, tmp_path: Path) -> None:
    for name in ("g.pdf", "g.gguf", "a.b.jpeg"):
        message = run("graph", "-m", tiny, "-o", tmp_path / name).usage_error
        assert message == (
            f"'-o' / '--output': the suffix of {name!r} is no known format: it"
            " must be .txt, .text, .dot, .json, .html, .svg, .png, or use --format"
        )
    assert not list(tmp_path.iterdir())
    dump(run, "-m", tiny, "-o", tmp_path / "g.pdf", "--format", "text")
    assert (tmp_path / "g.pdf").read_text().startswith("graph: ")


def test_graphviz_that_fails(run: Run, tiny: Path, programs: Path) -> None:
    fake_dot(programs, "/bin/cat >/dev/null; printf 'no\\nmemory' >&2; exit 3")
    error = run("graph", "-m", tiny, "--format", "svg").error
    assert error == r"dot ended with exit code 3: no\nmemory"


def test_graphviz_that_takes_too_long(
    run: Run, tiny: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["ggmlpy.cli.graph"], "DOT_TIMEOUT_S", 0.3)
    fake_dot(programs, "exec /bin/sleep 60")
    error = run("graph", "-m", tiny, "--format", "svg").error
    assert error.endswith("nodes within 0.3 s: use fewer --layers")
