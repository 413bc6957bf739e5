"""Names and figures in documents are those of the code and of the results that are kept."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import ggmlpy
from ggmlpy import Llama, ops
from tests.core.test_layers import ROOMS
from tests.cpu.test_matmul_code import ON_PRODUCT_PORTS
from tests.documents import DOCUMENTS, README, ROOT, label, rows_of, text_of

DOCS = ROOT / "docs"
TESTS_BY_COLUMN = {
    "prompt of 512": "prompt 512",
    "decode, 1 sequence": "decode",
    "8 sequences": "8 streams",
    "32 sequences": "32 streams",
}


def results_of(name: str) -> dict[str, Any]:
    """What a benchmark has saved."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return saved


@pytest.mark.parametrize("path", DOCUMENTS, ids=label)
def test_paths_exist(path: Path) -> None:
    text = text_of(path)
    for name in re.findall(r"`((?:\w+/)+[\w.*]*)`|python (\w+/[\w/]+\.py)", text):
        assert any(ROOT.glob("".join(name))), name
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (path.parent / target).exists(), target


def test_documents_name_paths() -> None:
    """So that a change of the pattern that finds paths does not leave all of them out."""
    named = [re.findall(r"`(?:\w+/)+\w+\.py`", text_of(path)) for path in DOCUMENTS]
    assert sum(map(len, named)) > 20


def test_the_readme_is_short_and_lists_the_rooms_in_their_order() -> None:
    text = text_of(README)
    assert len(text.splitlines()) <= 150
    listed = re.findall(r"^[├└]── (\w+)", text, re.MULTILINE)
    assert listed == [name for name in ROOMS if not name.startswith("_")]


def test_contributing_lists_the_rooms_in_their_order() -> None:
    listed = re.search(r"```\n(errors, .*?)\n```", text_of(ROOT / "CONTRIBUTING.md"), re.DOTALL)
    assert listed is not None
    assert re.split(r",\s+", listed[1]) == [name for name in ROOMS if not name.startswith("_")]


def test_the_design_describes_every_room() -> None:
    listed = re.findall(r"^::: ggmlpy\.(\w+)", text_of(DOCS / "design.md"), re.MULTILINE)
    assert listed == [name for name in ROOMS if (ROOT / "ggmlpy" / name).is_dir()]


@pytest.mark.parametrize("room", [r for r in ROOMS if (ROOT / "ggmlpy" / r).is_dir()])
def test_every_room_says_what_comes_in_and_goes_out(room: str) -> None:
    source = (ROOT / "ggmlpy" / room / "__init__.py").read_text(encoding="utf-8")
    described = ast.get_docstring(ast.parse(source)) or ""
    assert re.search(r"^In: .*Out: ", described, re.DOTALL | re.MULTILINE)


def test_the_reference_has_every_public_name() -> None:
    pages = "\n".join(text_of(path) for path in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: ggmlpy\.(\w+)$", pages, re.MULTILINE))
    errors = {name for name in ggmlpy.__all__ if hasattr(ggmlpy.errors, name)}
    assert set(ggmlpy.__all__) - errors - {"ops"} <= shown
    assert "errors" in shown
    families = re.findall(r"^::: ggmlpy\.ops\.(\w+)$", pages, re.MULTILINE)
    defined = {
        node.name
        for family in families
        for node in ast.parse(text_of(ROOT / "ops" / f"{family}.py")).body
        if isinstance(node, ast.FunctionDef)
    }
    made = {row[0].strip("`") for row in rows_of(DOCS / "api" / "ops.md", "op")[1:]}
    assert set(ops.__all__) <= defined | made


def test_the_table_of_unary_ops_has_their_formulas() -> None:
    for name, formula in rows_of(DOCS / "api" / "ops.md", "op")[1:]:
        described = inspect.getdoc(getattr(ops, name.strip("`"))) or ""
        assert formula.replace("\\", "") in described


def test_the_table_of_options_has_their_defaults() -> None:
    shown = {row[0].strip("`"): row[1] for row in rows_of(DOCS / "generating.md", "option")[1:]}
    taken = inspect.signature(Llama.request).parameters
    defaults = {name: f"`{taken[name].default!r}`" for name in taken}
    assert shown == {k: v for k, v in defaults.items() if k not in ("self", "prompt")}


@pytest.mark.parametrize("path", [README, DOCS / "performance.md"], ids=label)
def test_figures_are_those_of_the_results(path: Path) -> None:
    header, *rows = rows_of(path, "model")
    all_results = results_of("vs_llama_cpp")
    for model, *figures in rows:
        results = {f["test"]: f for f in all_results[model.replace(" ", "-")]["figures"]}
        for column, figure in zip(header[1:], figures, strict=True):
            if model == "stories260K":
                continue
            result = results[TESTS_BY_COLUMN[column]]
            rate = f"{result['medians']['ggmlpy']:#.3g}".rstrip(".")
            assert figure == f"{rate}, {result['advantage']:.2f}x", f"{model}: {column}"


def test_times_of_loading_are_those_of_the_results() -> None:
    header, *rows = rows_of(DOCS / "performance.md", "loading")
    for column, way in enumerate(header[1:], 1):
        results = results_of(f"load_{way}")
        assert {r["environment"].get("GGMLPY_PACKED_CACHE") for r in results.values()} == {
            {"packed": None, "mapped": "4"}[way]
        }
        for row in rows:
            (load,) = (
                figure
                for figure in results[row[0].replace(" ", "-")]["figures"]
                if figure["test"] == "load to first token"
            )
            shown = f"{load['medians']['ggmlpy']:.3g}, {load['advantage']:.2f}x"
            assert row[column] == shown


def test_speeds_of_kernels_are_those_of_the_results() -> None:
    (result,) = results_of("kernels_one_core").values()
    (ceiling,) = result["ceilings"]
    speeds = {kernel["id"]: kernel["products_per_s"] for kernel in result["kernels"]}
    _, *rows = rows_of(DOCS / "performance.md", "weights")
    assert len(rows) == len(speeds) / 2
    shares = []
    for type, bound, *figures in rows:
        share = 8 / ON_PRODUCT_PORTS[type]
        assert bound == f"{100 * share:.0f} %"
        most = share * ceiling["dot"]
        for n, figure in zip((32, 128), figures, strict=True):
            speed = speeds[f"{type} 2048x2048 rows={n}"]
            assert figure == f"{speed / 1e9:.0f}, {100 * speed / most:.0f} %"
            shares.append(100 * speed / most)
    text = " ".join(text_of(DOCS / "performance.md").split())
    assert f"reach {min(shares):.0f} to {max(shares):.0f} % of that bound" in text
    bounds = [f"{8 / n * ceiling['dot'] / 1e9:.0f}" for n in (10, 11, 13)]
    assert "so the bound is {}, {} or {}".format(*bounds) in text


def test_the_table_of_two_threads_is_that_of_all_kernels() -> None:
    (result,) = results_of("kernels").values()
    found = {k["id"]: k for k in result["kernels"] if (k["isa"], k["threads"]) == ("avx512", 2)}
    _, *rows = rows_of(DOCS / "performance.md", "type")
    assert rows
    for type, read, *figures in rows:
        kernel = found[f"{type} 2048x8192 rows=1"]
        assert read == f"{kernel['bytes_per_s'] / 1e9:.1f}"
        for n, figure in zip((8, 32, 512), figures, strict=True):
            kernel = found[f"{type} 2048x8192 rows={n}"]
            assert figure == f"{kernel['products_per_s'] / 1e9:.0f}"


def test_the_site_loads_nothing_from_elsewhere() -> None:
    settings = text_of(ROOT / "mkdocs.yml")
    assert "font: false" in settings
    assert "http" not in settings and "analytics" not in settings
    for path in DOCS.rglob("*"):
        if path.suffix in (".md", ".css", ".html", ".js"):
            assert not re.search(r"<script|<img|@import|url\(|```mermaid", text_of(path)), path
