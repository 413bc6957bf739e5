"""Scripts of llama-cpp-python's users give what they give with llama-cpp-python."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import packaged_model
from ggmlpy.compat import llama_cpp
from tests.compat.user_scripts import SCRIPTS, SHAPES

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("scripts.json").read_text(encoding="utf-8")
)
NEEDS_GRAMMARS = {"functions", "grammar", "json_mode", "json_schema", "tools"}
ANY_VALUE = {"id", "created", "model"}  # differ from run to run, or with the folder
ABSOLUTE, RELATIVE = 0.03, 0.01
"""Of logits and embeddings: weights and activations of 8 bits, rounded by other kernels."""


def differences(found: Any, expected: Any, shape: bool, at: str = "") -> list[str]:
    """Where two results differ: in names and types, and unless only the `shape` counts in values.

    Lists of a shape have the first element's.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{at}: has {sorted(found)}, not {sorted(expected)}"]
        lines *= found.keys() != expected.keys()
        for key in expected.keys() & found.keys():
            loose = shape or key in ANY_VALUE
            lines += differences(found[key], expected[key], loose, f"{at}.{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list | tuple):
        pairs = list(zip(found, expected, strict=False))
        lines = [f"{at}: has {len(found)} elements, not {len(expected)}"]
        lines *= not pairs and found != expected if shape else len(found) != len(expected)
        for i, pair in enumerate(pairs[:1] if shape and len(found) != len(expected) else pairs):
            lines += differences(*pair, shape, f"{at}[{i}]")
        return lines
    if type(found) is not type(expected):
        return [f"{at}: is a {type(found).__name__}, not a {type(expected).__name__}"]
    if shape:
        return []
    if isinstance(expected, float):
        same = math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    else:
        same = found == expected
    return [] if same else [f"{at}: is {found!r}, not {expected!r}"]


def test_all_scripts_are_recorded() -> None:
    assert SCRIPTS.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, tmp_path: Path) -> None:
    if name in NEEDS_GRAMMARS:
        pytest.importorskip("llguidance")
    found = SCRIPTS[name](llama_cpp, str(packaged_model()), tmp_path)
    assert differences(found, RECORDED[name], name in SHAPES) == []


def test_differences_are_seen() -> None:
    expected = {"id": "a", "choices": [{"text": "x", "logprob": -1.5}], "n": 2}
    assert differences(dict(expected, id="b"), expected, False) == []
    assert differences(dict(expected, n=3), expected, False)
    assert differences(dict(expected, n=3), expected, True) == []
    assert differences(dict(expected, n=3.0), expected, True)
    assert differences(dict(expected, more=1), expected, True)
    for choices in ([], [{"text": "y", "logprob": -1.5}], [{"text": "x", "logprob": -1.6}]):
        assert differences(dict(expected, choices=choices), expected, False)
    assert differences(dict(expected, choices=[{"text": "x"}]), expected, True)
