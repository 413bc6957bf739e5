"""Answers are what JSON schemas say, and what schemas cannot say is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import Grammar, Llama, packaged_model
from ggmlpy.errors import ArgumentError, GrammarError
from ggmlpy.grammar import Matchers
from ggmlpy.text.tokenizer import Tokenizer
from tests.grammar.schemas import random_schema

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

N_TOKENS = 400


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx_seq=512, n_seq_max=8) as made:
        yield made


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(Tokenizer.from_gguf(packaged_model()))


def test_random_schemas(llm: Llama) -> None:
    """`benchmarks/structured_output.py` does it with more of them."""
    schemas = [random_schema(seed) for seed in range(32)]
    requests = [
        llm.request(
            "A boy:",
            response_format={"type": "json_object", "schema": schema},
            max_tokens=N_TOKENS,
            seed=seed,
        )
        for seed, schema in enumerate(schemas)
    ]
    n_finished = 0
    for schema, result in zip(schemas, llm.generate(requests), strict=True):
        found = result["choices"][0]
        if found["finish_reason"] == "stop":
            n_finished += 1
            validator = jsonschema.Draft202012Validator(schema)
            validator.validate(json.loads(found["text"]))
    assert n_finished > 0.9 * len(schemas)


@pytest.mark.parametrize(
    "schema, pointer, why",
    [
        ({"not": {}}, "#", 'keywords that are not supported: "not"'),
        ({"items": {"uniqueItems": True}}, "#/items", '"uniqueItems"'),
        ({"properties": {"a/b": {"contains": {}}}}, "#/properties/a~1b", '"contains"'),
        ({"properties": {"~": {"if": {}, "then": {}}}}, "#/properties/~0", '"if"'),
        ({"dependentRequired": {"a": ["b"]}}, "#", '"dependentRequired"'),
        ({"propertyNames": {"pattern": "a"}}, "#", '"propertyNames"'),
        ({"prefixItems": [{}, {"type": "strin"}]}, "#/prefixItems/1", "strin"),
        ({"anyOf": [{}, {"type": "string", "format": "foo"}]}, "#/anyOf/1", "foo"),
        ({"type": "string", "pattern": "(?=a)b"}, "#", "look-around"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"items": {"not": {}}}}}, "#/$defs/x/items", "not"),
        (
            {
                "$ref": "#/$defs/node",
                "$defs": {
                    "node": {
                        "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"format": "foo"}}
                    }
                },
            },
            "#/$defs/node/properties/v",
            "foo",
        ),
        (
            {"properties": {"a": {"$ref": "other.json"}}},
            "#/properties/a",
            'a reference leads to another document, "other.json"',
        ),
        (
            {"oneOf": [{"type": "object"}, {"required": ["a"]}]},
            "#",
            'the branches of "oneOf" may overlap',
        ),
        ({"properties": 5}, "#", "must be an object"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "#", "minimum"),
        ({"enum": []}, "#", "empty"),
        (False, "#", "schema is false"),
        ({"x-guidance": {"whitespace_flexible": 5}}, "#", "boolean"),
    ],
)
def test_refused_schemas_say_which_part(
    matchers: Matchers, schema: Any, pointer: str, why: str
) -> None:
    with pytest.raises(GrammarError) as error:
        matchers.start(Grammar.json_schema(schema))
    message = str(error.value)
    assert message.startswith(f"the JSON schema is refused at {pointer}: ")
    assert why in message
    assert "\n" not in message


def test_texts_of_schemas(matchers: Matchers) -> None:
    assert Grammar.json_schema('{"type": "object"}') == Grammar.json_object()
    with pytest.raises(GrammarError, match=r"is not JSON: .*line 1"):
        Grammar.json_schema("{")
    for wrong in (5, None, [1], "[1]", '"a"', {"a": {1}}, {"a": object()}):
        with pytest.raises(ArgumentError):
            Grammar.json_schema(wrong)  # type: ignore[arg-type]


numbers = st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
keywords = st.sampled_from(
    ["type", "properties", "items", "enum", "$ref", "minLength", "maximum", "required", "anyOf",
     "pattern", "format", "multipleOf", "prefixItems", "$defs", "x-guidance", "maxItems"]
)  # fmt: skip


@given(schema=st.dictionaries(keywords, values, max_size=4))
def test_damaged_schemas(matchers: Matchers, schema: dict[str, Any]) -> None:
    """Nothing but GrammarError, on one line."""
    try:
        matchers.start(Grammar.json_schema(schema))
    except GrammarError as error:
        assert "refused at #" in str(error)
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text, is_allowed",
    [
        ('{"a": 1, "b": [1, 2]}', True),
        ('{"a":1,"b":[]}', True),
        ('{\n  "a": 1,\n  "b": []\n}', True),
        ('{\n\n\t"a": 1, "b": []}', True),
        ('{\n\n\n"a": 1, "b": []}', False),
        ('{  "a": 1, "b": []}', False),
        (' {"a": 1, "b": []}', False),
        ('{"b": [], "a": 1}', False),
    ],
)
def test_white_space_is_limited(matchers: Matchers, text: str, is_allowed: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array"}},
        "required": ["a", "b"],
    }
    tokens = Tokenizer.from_gguf(packaged_model()).encode_part(text)
    made = matchers.start(Grammar.json_schema(schema))
    n = made.n_valid(tokens)
    assert (n == len(tokens)) == is_allowed
