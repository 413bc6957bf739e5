"""JSON schemas in GBNF take the texts that llama-cpp-python's take.

`gbnf_of_schemas.json` has texts, and of each schema those that llguidance takes by the grammar that
`llama_cpp.llama_grammar.json_schema_to_gbnf` of llama-cpp-python 0.3.36 makes, in which 15 optional
digits within one another were written as a repetition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy import packaged_model
from ggmlpy.compat.llama_cpp import Llama, LlamaGrammar, llama_grammar
from ggmlpy.errors import GrammarError, Unsupported
from ggmlpy.grammar.gbnf import parse_gbnf
from tests.compat.test_schemas import takes

pytest.importorskip("llguidance")

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("gbnf_of_schemas.json").read_text())
INTEGER = {"type": "integer"}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(str(packaged_model()), n_ctx=64, verbose=False) as model:
        yield model


def taken(llm: Llama, schema: Any, texts: list[str], **options: Any) -> list[str]:
    """The texts that the grammar of a schema takes as a whole."""
    gbnf = llama_grammar.json_schema_to_gbnf(json.dumps(schema), **options)
    grammar = LlamaGrammar.from_string(gbnf)
    return [text for text in texts if takes(llm, grammar, text)]


@pytest.mark.parametrize("name", RECORDED["schemas"])
def test_texts_are_those_of_llama_cpp_python(llm: Llama, name: str) -> None:
    recorded = RECORDED["schemas"][name]
    assert recorded["taken"]
    assert taken(llm, recorded["schema"], RECORDED["texts"]) == recorded["taken"]


def test_schemas_that_name_themselves(llm: Llama) -> None:
    node = {"type": "object", "properties": {"v": INTEGER}, "required": ["v", "next"]}
    node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]}  # type: ignore[index]
    texts = ['{"v": 1, "next": null}', '{"v": 1, "next": {"v": 2, "next": null}}']
    wrong = ['{"v": 1, "next": 3}', '{"v": 1}']
    for schema in (
        {"$defs": {"a/b": node}, "$ref": "#/$defs/a~1b"},
        {"$defs": {"a/b": node}, "anyOf": [{"$ref": "#/$defs/a~1b"}]},
    ):
        assert taken(llm, schema, texts + wrong) == texts
    lists = {"type": "array", "items": {"$ref": "#"}}
    assert taken(llm, lists, ["[[], [[]]]", "[1]"]) == ["[[], [[]]]"]


def test_properties_in_a_given_order(llm: Llama) -> None:
    schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER, "c": INTEGER}}
    texts = ['{"c": 1, "a": 2, "b": 3}', '{"a": 2, "b": 3, "c": 1}']
    assert taken(llm, schema, texts) == texts[1:]
    assert taken(llm, schema, texts, prop_order=["c"]) == texts[:1]


def test_names_and_constants_with_special_characters(llm: Llama) -> None:
    name = 'a "b"\\\n\u00e9-^]'
    schema = {"properties": {name: {"const": name}, "a-b": INTEGER, "a b": {"type": "null"}}}
    value = {name: name, "a-b": 1, "a b": None}
    text = json.dumps(value, ensure_ascii=False)
    assert taken(llm, schema, [text, text.replace("\u00e9", "e")]) == [text]


PATTERNS = (
    r"^(a|b\.)*$",
    r"^[a-c]{2}(?:-[^a]+)?$",
    r"^\d+\.\d{1,2}$",
    r"^.[\]\-^\\]?\"?$",
    r"^\w\W?\s*|aa$",
    r"^a{2,}?b{0}\x62\u0063?$",
    r"^$",
    r"^(\/|[\d\-.])+$",
    r"^a\\$",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_they_match(llm: Llama, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    grammar = LlamaGrammar.from_string(llama_grammar.json_schema_to_gbnf(json.dumps(schema)))
    expected = re.compile(f"(?:{pattern[1:-1]})", re.ASCII)

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.text('abc1.-"\\\n]^/ \u00e9', max_size=6))
    def check(text: str) -> None:
        matches = expected.fullmatch(text) is not None
        assert takes(llm, grammar, json.dumps(text, ensure_ascii=False)) == matches, text

    check()


@pytest.mark.parametrize(
    ("schema", "error", "why"),
    [
        ({"type": "float"}, GrammarError, "type 'float'"),
        ({"$ref": "#/a/b"}, GrammarError, "no such part"),
        ({"$ref": "https://example.org/a.json"}, Unsupported, "not fetched"),
        ({"type": "array", "items": 3}, GrammarError, "3 is no schema"),
        ({"type": "array", "items": {}, "minItems": 2, "maxItems": 1}, GrammarError, "so long"),
        ({"type": "string", "maxLength": "3"}, GrammarError, "must be an integer"),
        ({"type": "string", "pattern": 3}, GrammarError, "must be a string"),
        ({"properties": [3]}, GrammarError, "must be an object"),
        ({"properties": {}, "required": "a"}, GrammarError, "must be a list"),
        ({"anyOf": []}, GrammarError, "empty anyOf"),
        ({"properties": {"a": {"allOf": [{"$ref": "#"}]}}}, GrammarError, "names itself"),
        *(
            ({"type": "string", "pattern": pattern}, GrammarError, why)
            for pattern, why in (
                ("a", "must begin with"),
                (r"^a\$", "must begin with"),
                ("$", "must begin with"),
                ("^a(?=b)$", "look-around"),
                ("^(a$", "without"),
                ("^a)$", "without"),
                (r"^(a)\1$", "not supported"),
                (r"^a\b$", "not supported"),
                ("^[a$", "too early"),
                ("^*a$", "nothing before"),
                ("^a{x}$", "without counts"),
                ("^a{3,2}$", "without counts"),
                ("^a^b$", "inside"),
                (r"^\u12$", "digits"),
                ("^[b-a]$", "range"),
            )
        ),
    ],
    ids=str,
)
def test_schemas_that_are_refused(schema: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        llama_grammar.json_schema_to_gbnf(json.dumps(schema))


KEYS = (
    *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "allOf"),
    *("pattern", "format", "minLength", "maxItems", "additionalProperties", "$ref", "$defs", "a"),
)
TYPES = ("string", "object", "array", "integer", "null")
VALUES = st.sampled_from(
    [None, True, False, 0, 2, -1, 0.5, "", "a", "^a+$", "^(", "#", "#/$defs/a", "date", *TYPES]
)
SCHEMAS = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(SCHEMAS)
def test_any_schema_is_a_grammar_or_refused(schema: Any) -> None:
    try:
        gbnf = llama_grammar.json_schema_to_gbnf(json.dumps(schema))
    except (GrammarError, Unsupported):
        return
    assert "root" in parse_gbnf(gbnf)


def test_what_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        llama_grammar.json_schema_to_gbnf("{bad")


def test_a_converter_that_scripts_use_themselves(llm: Llama) -> None:
    converter = llama_grammar.SchemaConverter(
        prop_order={}, allow_fetch=False, dotall=True, raw_pattern=True
    )
    schema = converter.resolve_refs({"type": "string", "pattern": "^a.b$"}, "url")
    assert converter.visit(schema, "") == "root"
    grammar = LlamaGrammar.from_string(converter.format_grammar())
    assert takes(llm, grammar, "a\nb")
    assert not takes(llm, grammar, '"a.b"')
    assert converter.not_literal("abc") == '([^a] | "a" ([^b] | "b" ([^c])?)?)'
    assert converter.not_literal("_", maybe_escaped_underscores=True) == '([^_\\\\] | "\\\\"? "_")'
    rule = llama_grammar.BuiltinRule('"a" b', ["b"])
    assert (rule.content, rule.deps) == ('"a" b', ["b"])
    assert llama_grammar.BuiltinRule("a").deps == []
