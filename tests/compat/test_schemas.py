"""JSON schemas are followed as far as llama-cpp-python follows them, and never refused in chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ggmlpy import Grammar, packaged_model
from ggmlpy.compat.llama_cpp import Llama, LlamaGrammar
from ggmlpy.errors import GrammarError
from ggmlpy.grammar.library import matcher_class

pytest.importorskip("llguidance")

STRING: dict[str, Any] = {"type": "string"}
ARRAY = {"type": "array", "items": STRING}
OBJECT = {"type": "object", "properties": {"a": STRING}}

# What llama-cpp-python ignores, and ggmlpy's own grammars refuse.
IGNORED: list[dict[str, Any]] = [
    {**ARRAY, "uniqueItems": True},
    {**ARRAY, "contains": STRING, "minContains": 1, "maxContains": 2},
    {**ARRAY, "unevaluatedItems": False},
    {**STRING, "not": {"const": "a"}},
    {**STRING, "format": "path"},
    {**STRING, "format": "password"},
    {**STRING, "format": "binary"},
    {**OBJECT, "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {}},
    {**OBJECT, "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": OBJECT}},
    {**OBJECT, "dependencies": {"a": ["b"]}},
    {**OBJECT, "propertyNames": {"pattern": "^a$"}, "unevaluatedProperties": False},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
]
AHEAD = {"type": "object", "properties": {"a": {**STRING, "pattern": "^(?=x)y$"}}}
MESSAGES = [{"role": "user", "content": "Where?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(str(packaged_model()), n_ctx=256, verbose=False, seed=1) as model:
        yield model


def source_error(grammar: Grammar) -> str:
    """Why llguidance refuses a grammar; "" if it does not."""
    source = grammar.source(lambda _: None)
    is_error, messages = matcher_class().validate_grammar_with_warnings(source)
    return messages[0] if is_error else ""


@pytest.mark.parametrize("schema", IGNORED, ids=json.dumps)
def test_keywords_that_are_ignored(schema: dict[str, Any]) -> None:
    whole = {"type": "object", "properties": {"x": schema, "format": STRING}}
    assert source_error(Grammar.json_schema(whole))
    own = LlamaGrammar.from_json_schema(json.dumps(whole)).as_own()
    assert not source_error(own)
    kept = json.loads(own.text)
    assert list(kept["properties"]) == ["x", "format"]  # which is a name here
    for key in ("type", "items", "oneOf"):
        assert (key in kept["properties"]["x"]) == (key in schema)


@pytest.mark.parametrize("name", ["date", "date-time", "uuid", "email", "uri", "ipv4"])
def test_formats_that_are_followed(name: str) -> None:
    own = LlamaGrammar.from_json_schema(json.dumps({**STRING, "format": name})).as_own()
    assert json.loads(own.text)["format"] == name


def test_what_cannot_be_followed_is_any_json_in_chats(llm: Llama) -> None:
    with pytest.raises(GrammarError, match="look-ahead"):
        LlamaGrammar.from_json_schema(json.dumps(AHEAD))
    tool = {"type": "function", "function": {"name": "f", "parameters": AHEAD}}
    chosen = {"type": "function", "function": {"name": "f"}}
    call = llm.create_chat_completion(MESSAGES, tools=[tool], tool_choice=chosen, max_tokens=8)
    arguments = call["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments.startswith("{")
    for form in (
        {"type": "json_object", "schema": AHEAD},
        {"type": "json_schema", "json_schema": {"name": "f", "schema": AHEAD}},
    ):
        answer = llm.create_chat_completion(MESSAGES, response_format=form, max_tokens=8)
        assert answer["choices"][0]["message"]["content"].startswith("{")


def test_schemas_are_read_at_once() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        LlamaGrammar.from_json_schema("{bad")
    with pytest.raises(GrammarError, match="float"):
        LlamaGrammar.from_json_schema('{"type": "float"}')
