"""JSON schemas are followed as far as llama-cpp-python follows them, and never refused in chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ggmlpy import Grammar, packaged_model
from ggmlpy.compat.llama_cpp import Llama, LlamaGrammar, llama_grammar
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


# Texts that llama-cpp-python's grammars of the same names take as a whole, and some they do not.
TEXTS = {
    "LIST_GBNF": (["- a b\n", "- a\n- \u00e9!\n"], ["a\n", "- a\n\n", "- \n"]),
    "JSON_ARR_GBNF": (['[\n1,\n{"a": "\\n"}]', "[\n]"], ["[1]", "{}", '[\n"\n"]']),
    "JSON_GBNF": (['{"a": [1, true]}', "{}"], ["[1]", '{"a"}']),
    "CHESS_GBNF": (['{"a": [1, true]}'], ["e4"]),
    "ARITHMETIC_GBNF": (["a_1 +2=3\n", "(1 *b)=x\n2=2\n"], ["1\n", "+=1\n", "1 + 2=3\n"]),
    "C_GBNF": (
        [
            "int main(){return 1;}",
            "int f(int a){while(a<3){a = a+1;}for(int i = 0; i<3; i = -f(i, 2)){}}",
            "float f(){//\nif(a==1){f();}else{char b = (  2 );}/* * */}",
        ],
        ["int main()", "int f(){return 1}", "long f(){}"],
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_grammars_that_are_constants(llm: Llama, name: str) -> None:
    grammar = LlamaGrammar.from_string(getattr(llama_grammar, name))
    for right, texts in zip((True, False), TEXTS[name], strict=True):
        for text in texts:
            assert takes(llm, grammar, text) == right, text


def takes(llm: Llama, grammar: LlamaGrammar, text: str) -> bool:
    """Whether a grammar takes a text as a whole."""
    matcher = llm.ggmlpy.engine.matchers.start(grammar.as_own())
    for token in [*llm.tokenize(text.encode(), add_bos=False), llm.token_eos()]:
        allowed = matcher.allowed()
        if not int(allowed[token // 64]) >> token % 64 & 1:
            return False
        if token != llm.token_eos():
            matcher.accept(token)
    return True
