"""Strings between tags and quotes of a format's own keep to their schemas, as JSON's do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.tools import AnswerParser
from tests.calling.test_grammars import is_called, is_whole, made
from tests.calling.test_random_calls import FORMATS
from tests.calling.writers import WRITERS

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

NAMES = ["GLM", "Qwen3-Coder", "Gemma 4"]


def tools_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return [{"function": {"name": "f", "parameters": parameters}}]


def are_allowed(name: str, schema: dict[str, Any], text: str) -> tuple[bool, bool]:
    """Whether the grammars of required calls and of calls that may come have this value."""
    call, tools = WRITERS[name]("f", {"a": text}), tools_of(schema)
    return is_whole(made(name, "required", tools=tools), call), is_called(name, call, True, tools)


SCHEMAS: list[dict[str, Any]] = [
    {"minLength": 2},
    {"maxLength": 2},
    {"minLength": 1, "maxLength": 3, "pattern": "b"},
    {"pattern": "^a"},
    {"pattern": "a$"},
    {"pattern": "^a|b/$"},
    {"pattern": r"^(a|b\|)+$"},
    {"pattern": r"[/|$]\$"},
    {"pattern": r"a\\$"},
    {"const": "ab"},
    {"enum": ["a", "b/"]},
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
@settings(max_examples=15, deadline=None)
@given(text=st.text("ab/|$\\<\n", max_size=4))
def test_texts_by_their_schemas(name: str, schema: dict[str, Any], text: str) -> None:
    schema = {"type": "string", **schema}
    # Python's $ matches before a last line break too.
    pattern = re.sub(r"(?<!\\)((?:\\\\)*)\$$", r"\1\\Z", schema.get("pattern", ""))
    valid = jsonschema.Draft202012Validator({**schema, "pattern": pattern}).is_valid(text)
    assert are_allowed(name, schema, text) == (valid, valid)


def test_anchors_within_a_pattern() -> None:
    """No lexer has them: any text is allowed."""
    for name in NAMES:
        assert are_allowed(name, {"type": "string", "pattern": "^(a|b$)"}, "x") == (True, True)


FORMATTED = {
    "date": (["2024-02-29"], ["2024-13-01", "24-01-01", "2024-01-32", ""]),
    "time": (["23:59:60Z", "01:02:03.5+01:30"], ["24:00:00Z", "01:02:03", "1:02:03Z"]),
    "date-time": (["2024-01-31T00:00:00Z"], ["2024-01-31", "2024-01-31 00:00:00Z"]),
    "duration": (["P1Y2M", "PT3H", "P2W", "P1DT1S"], ["P", "PT", "1D", "P1D2Y"]),
    "email": (["a.b+c@d-e.org"], ["a@", "@b.c", "a b@c.d", "a@b"]),
    "hostname": (["a", "a-b.example"], ["-a", "a..b", "a_b"]),
    "ipv4": (["0.10.199.255"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
    "ipv6": (
        ["::", "::1", "1::", "a:b:c:d:e:f:1:2", "1::2:3", "1:2:3:4:5:6:7::"],
        ["1", ":::", "1::2::3", "1:2:3:4:5:6:7:8:9", "g::"],
    ),
    "uri": (["a:b", "https://x.org/y?z#w"], ["x.org", "a: b", ":b"]),
    "uuid": (["01234567-89ab-CDEF-0123-456789abcdef"], ["01234567", "x" * 36]),
}


@pytest.mark.parametrize("format", FORMATTED)
def test_formats(format: str) -> None:
    schema = {"type": "string", "format": format}
    for texts, valid in zip(FORMATTED[format], (True, False), strict=True):
        for text in texts:
            for name in NAMES:
                assert are_allowed(name, schema, text) == (valid, valid), text


@pytest.mark.parametrize("name", ["GLM", "Qwen3-Coder"])
@pytest.mark.parametrize(
    ("schema", "good", "wrong"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["x y", None, "12"], []),
        ({"type": ["string", "integer"]}, ["x", 3, "1.5"], []),
        ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2, True]),
        ({"const": 5}, [5], ["5x", 6]),
        ({}, ["x", 1, {"b": [2]}], []),
    ],
    ids=str,
)
def test_values_that_may_be_texts(
    name: str, schema: dict[str, Any], good: list[Any], wrong: list[Any]
) -> None:
    """They are written without quotes, and read back."""
    tools = tools_of(schema)
    for value, valid in [*((v, True) for v in good), *((v, False) for v in wrong)]:
        call = WRITERS[name]("f", {"a": value})
        assert is_whole(made(name, "required", tools=tools), call) == valid, value
        assert is_called(name, call, True, tools) == valid, value
        parser = AnswerParser(FORMATS[name], ["f"], types={"f": {"a": schema}})
        deltas = parser.push(call) + parser.finish()
        text = "".join(delta.call.arguments for delta in deltas if delta.call)
        assert not valid or json.loads(text) == {"a": value}
