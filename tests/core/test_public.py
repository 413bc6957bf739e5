"""The names of the package: imported when they are first asked for, none hidden by a module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ggmlpy

ROOT = Path(__file__).resolve().parents[2]
MODULES = {path.stem for path in (ROOT / "ggmlpy").iterdir() if path.name != "__pycache__"}


@pytest.mark.parametrize("name", ggmlpy.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(ggmlpy, name) is not None
    assert name in dir(ggmlpy)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ggmlpy' has no attribute 'Lama'"):
        ggmlpy.Lama  # type: ignore[attr-defined]  # noqa: B018


def test_no_name_is_a_modules_too() -> None:
    """Importing the module would put it in the place of the name."""
    assert MODULES & set(ggmlpy.__all__) == {"ops"}  # which is the module


def test_a_type_checker_is_told_the_same() -> None:
    tree = ast.parse((ROOT / "ggmlpy" / "__init__.py").read_text(encoding="utf-8"))
    told = {
        alias.name: (node.module or "").removeprefix("ggmlpy").removeprefix(".") or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ggmlpy")
        for alias in node.names
    }
    assert told.keys() == set(ggmlpy.__all__)
    assert {name: module for name, module in told.items() if module != "errors"} == ggmlpy._MODULES


def test_a_star_imports_all_of_them() -> None:
    code = "from ggmlpy import *; print(sorted(set(dir())))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(ggmlpy.__all__) <= set(ast.literal_eval(done.stdout))
