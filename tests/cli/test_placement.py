"""`graph` and `inspect` show where a model would lie and run; nothing is loaded for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.scheduler import homes
from tests.cli.conftest import Run
from tests.models.tiny import Tiny, write_model

PLACED = ("--backend", "mock", "-ngl", "2", "-ot", "blk.0.ffn_up=reference")


def dumped(run: Run, *args: str) -> dict[str, Any]:
    result = run("graph", "--format", "json", *args)
    assert result.code == 0, result
    parsed: dict[str, Any] = json.loads(result.out)
    return parsed


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 2, -1])
def test_the_graph_shows_what_a_context_does(run: Run, tiny: Path, n_gpu_layers: int) -> None:
    names = ["mock", "cpu", "reference"]
    context = Context.open(tiny, backend=names, n_ctx=16, n_gpu_layers=n_gpu_layers, passes="none")
    context.decode([1])
    executable = next(iter(context.plans.plans.values())).executable
    graph = executable.graph
    found = homes(graph, executable.schedule)
    done = {graph.name_of(t): name for t, name in found.items()}
    shown = dumped(run, "-m", str(tiny), "--backend", "mock", "-ngl", str(n_gpu_layers))
    assert {t["name"]: t["on"] for t in shown["nodes"] if "on" in t} == {
        graph.name_of(t): found[t] for t in graph.nodes if t in found
    }
    for leaf in shown["leafs"]:
        if leaf["name"].startswith("cache_"):
            assert leaf["on"] == done[leaf["name"]], leaf


def test_splits_and_copies(run: Run, tiny: Path) -> None:
    result = run("graph", "-m", str(tiny), *PLACED)
    lines = result.out.splitlines()
    n_layer = load_model(GGUFFile.open(tiny)).hparams.n_layer
    assert lines[0].startswith("placement: layers 0"), lines[0]
    assert lines[0].endswith(f"{n_layer - 1} and output on mock")
    splits = [re.fullmatch(r"split (\d+): (\d+) nodes on (\w+)(.*)", line) for line in lines]
    found = [match for match in splits if match]
    assert [match[1] for match in found] == list(map(str, range(len(found))))
    by_backend = {"cpu": 0, "reference": 0, "mock": 0}
    for match in found:
        by_backend[match[3]] += int(match[2])
    for name, n_nodes in by_backend.items():
        assert n_nodes == sum(x.startswith("node") and x.endswith(f" on {name}") for x in lines)
    assert ", copies ffn_inp-" in found[-1][4]
    assert found[-1][4].endswith("from host")


def test_every_format_shows_it(run: Run, tiny: Path) -> None:
    page, dot = (
        run("graph", "-m", str(tiny), "--format", name, *PLACED).out for name in ("html", "dot")
    )
    assert '<span class="home">mock</span>' in page
    assert re.search(r'label="mul_mat\\nnode \d+ [^"]* on mock"', dot)


def test_without_placement_nothing_of_it_is_shown(run: Run, tiny: Path) -> None:
    assert all("on" not in t for t in dumped(run, "-m", str(tiny))["nodes"])
    assert " on cpu" not in run("graph", "-m", str(tiny)).out


def test_inspect(run: Run, tiny: Path) -> None:
    result = run("inspect", str(tiny), "--tensors", "--json", *PLACED)
    described = json.loads(result.out)
    on = {t["name"]: t["on"] for t in described["tensors"]}
    n_layer = load_model(GGUFFile.open(tiny)).hparams.n_layer
    for name, memories in on.items():
        is_last = name.startswith((f"blk.{n_layer - 1}.", "output"))
        assert memories[-1] == ("mock" if is_last else "host"), name
    sizes = described["placement"]["n_bytes"]
    for memory, n_bytes in sizes.items():
        assert n_bytes == sum(t["n_bytes"] for t in described["tensors"] if memory in on[t["name"]])
    text = run("inspect", str(tiny), "--tensors", *PLACED).out
    assert re.search(rf"blk\.{n_layer - 1}\.attn_q\.weight .* mock\n", text)
    assert text.rstrip().splitlines()[-1].startswith("placement: layers 0")


def test_what_cannot_be(run: Run, tiny: Path) -> None:
    for command in (("graph", "-m"), ("inspect",)):
        result = run(*command, str(tiny), "-ot", "blk=gpu9")
        assert result.code == 1
        assert "'blk' is to lie on 'gpu9': it must be one of cpu, host, reference" in result.err
        result = run(*command, str(tiny), "-ngl", "3")
        assert (result.code, result.err.count("\n")) == (0, 1)
        assert "no device has memory of its own" in result.err


def test_experts_stay_on_the_host(run: Run, tmp_path: Path) -> None:
    """llama.cpp's -cmoe and -ncmoe."""
    path = write_model(tmp_path / "moe.gguf", Tiny(n_expert=4, n_expert_used=2))
    common = ("inspect", path, "--tensors", "--json", "--backend", "mock,cpu", "-ngl", "all")

    def on_host(*args: str) -> set[str]:
        shown = json.loads(run(*common, *args).out)
        return {t["name"] for t in shown["tensors"] if t["on"] == ["host"]}

    every = {f"blk.{i}.ffn_{kind}_exps.weight" for i in (0, 1) for kind in ("up", "gate", "down")}
    others = on_host()
    assert not others & every
    assert on_host("-cmoe") == every | others
    first = {name for name in every if name.startswith("blk.0")}
    assert on_host("--n-cpu-moe", "1") == first | others
