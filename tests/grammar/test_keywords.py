"""Each keyword of JSON Schema (draft 2020-12) that says something of values is enforced or refused.

`benchmarks/schema_suite.py` does it with the test suite of JSON Schema.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ggmlpy import Grammar, packaged_model
from ggmlpy.errors import GrammarError
from ggmlpy.grammar import Matchers
from ggmlpy.text.tokenizer import Tokenizer

pytest.importorskip("llguidance")

# keyword: a schema, a value that it allows, one that it does not
ENFORCED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "type": ({"type": "integer"}, 5, "5"),
    "enum": ({"enum": [1, "a", [2]]}, [2], 2),
    "const": ({"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    "properties": ({"properties": {"a": {"type": "null"}}}, {"a": None}, {"a": 0}),
    "required": ({"required": ["a"]}, {"a": 0}, {"b": 0}),
    "additionalProperties": ({"additionalProperties": {"type": "null"}}, {"a": None}, {"a": 0}),
    "patternProperties": ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": None}, {"ab": 0}),
    "minProperties": ({"minProperties": 1}, {"a": 0}, {}),
    "maxProperties": ({"maxProperties": 1}, {"a": 0}, {"a": 0, "b": 0}),
    "prefixItems": ({"prefixItems": [{"type": "null"}]}, [None, 1], [1]),
    "items": ({"items": {"type": "null"}}, [None], [None, 1]),
    "minItems": ({"minItems": 1}, [0], []),
    "maxItems": ({"maxItems": 1}, [0], [0, 0]),
    "minLength": ({"minLength": 2}, "äö", "ä"),
    "maxLength": ({"maxLength": 2}, "äö", "äöü"),
    "pattern": ({"pattern": "b+c"}, "abbcd", "ac"),
    "format": ({"format": "date"}, "2024-02-29", "2024-2-29"),
    "minimum": ({"minimum": -3}, -3, -4),
    "maximum": ({"maximum": 2.5}, 2.5, 2.6),
    "exclusiveMinimum": ({"exclusiveMinimum": -3}, -2, -3),
    "exclusiveMaximum": ({"exclusiveMaximum": 3}, 2, 3),
    "multipleOf": ({"multipleOf": 3}, 9, 10),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, None, "a"),
    "allOf": ({"allOf": [{"minimum": 2}, {"maximum": 4}]}, 3, 5),
    "oneOf": ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, 1, "a"),
    "$ref": ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, None, 0),
    "$anchor": ({"$ref": "#x", "$defs": {"y": {"$anchor": "x", "type": "null"}}}, None, 0),
}
REFUSED: dict[str, Any] = {
    "not": {"type": "null"},
    "if": {"type": "null"},
    "then": {"type": "null"},
    "else": {"type": "null"},
    "contains": {"type": "null"},
    "minContains": 2,
    "maxContains": 2,
    "uniqueItems": True,
    "propertyNames": {"maxLength": 2},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"required": ["b"]}},
    "dependencies": {"a": ["b"]},  # of draft 7, as the next
    "$recursiveRef": "#",
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "$dynamicRef": "#x",
}
REMARKS: dict[str, Any] = {
    "title": "a",
    "description": "a",
    "default": 1,
    "examples": [1],
    "deprecated": True,
    "readOnly": True,
    "writeOnly": True,
    "$comment": "a",
    "contentEncoding": "base64",
    "contentMediaType": "application/json",
    "contentSchema": {"type": "object"},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(packaged_model())


@pytest.fixture(scope="module")
def matchers(tokenizer: Tokenizer) -> Matchers:
    return Matchers(tokenizer)


def is_allowed(matchers: Matchers, tokenizer: Tokenizer, schema: Any, value: Any) -> bool:
    matcher = matchers.start(Grammar.json_schema(schema))
    tokens = tokenizer.encode(json.dumps(value, ensure_ascii=False))
    if matcher.n_valid(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.accept(token)
    return matcher.is_accepting


@pytest.mark.parametrize("keyword", ENFORCED)
def test_enforced(matchers: Matchers, tokenizer: Tokenizer, keyword: str) -> None:
    schema, right, wrong = ENFORCED[keyword]
    assert is_allowed(matchers, tokenizer, schema, right)
    assert not is_allowed(matchers, tokenizer, schema, wrong)


@pytest.mark.parametrize("keyword", REFUSED)
def test_refused(matchers: Matchers, keyword: str) -> None:
    schema = {"properties": {"a": {keyword: REFUSED[keyword]}}}
    with pytest.raises(GrammarError, match=r"refused at #/properties/a: .*\"") as error:
        matchers.start(Grammar.json_schema(schema))
    assert f'"{keyword}"' in str(error.value)


@pytest.mark.parametrize("keyword", REMARKS)
def test_remarks_change_nothing(matchers: Matchers, tokenizer: Tokenizer, keyword: str) -> None:
    for value in (1, "a", {"b": [None]}):
        assert is_allowed(matchers, tokenizer, {keyword: REMARKS[keyword]}, value)
