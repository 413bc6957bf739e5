"""Scripts of llama-cpp-python's users give what they give with llama-cpp-python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import packaged_model
from ggmlpy.compat import llama_cpp
from tests.compat.compared import differences, plain
from tests.compat.user_scripts import SCRIPTS, SHAPES

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("scripts.json").read_text(encoding="utf-8")
)
NEEDS_GRAMMARS = {"functions", "grammar", "json_mode", "json_schema", "tools"}


def test_all_scripts_are_recorded() -> None:
    assert SCRIPTS.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, tmp_path: Path) -> None:
    if name in NEEDS_GRAMMARS:
        pytest.importorskip("llguidance")
    found = plain(SCRIPTS[name](llama_cpp, str(packaged_model()), tmp_path))
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
