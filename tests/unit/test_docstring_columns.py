"""Columns of a docstring become definition lists of the documentation's site, all else stays."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "docs" / "extensions" / "columns.py"


@pytest.fixture(scope="module")
def columns() -> Any:
    pytest.importorskip("griffe", reason="the documentation's packages are not installed")
    spec = importlib.util.spec_from_file_location("columns", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_and_continued_lines(columns: Any) -> None:
    text = "Load.\n\nn_ctx     tokens of all\n          sequences\ntop_p, k  the rest"
    listed = "`n_ctx`\n:   tokens of all sequences\n\n`top_p`, `k`\n:   the rest"
    assert columns.with_lists(text) == f"Load.\n\n\n{listed}"


def test_names_that_fill_their_column_or_reach_beyond_it(columns: Any) -> None:
    text = "a        one\ntype_k_v two\nlonger, names  three"
    listed = "`a`\n:   one\n\n`type_k_v`\n:   two\n\n`longer`, `names`\n:   three"
    assert columns.with_lists(text).strip() == listed


@pytest.mark.parametrize(
    "text",
    [
        "One sentence.  And another.\nA second line.",
        "    y = x  # code\n    z = y",
        "word  after two spaces\nand a line that is no row",
    ],
)
def test_everything_else_stays(columns: Any, text: str) -> None:
    assert columns.with_lists(text) == text
