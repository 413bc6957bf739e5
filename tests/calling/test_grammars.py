"""The grammars of required calls have what the families write, and nothing else."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ggmlpy.grammar import Grammar, Matchers
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.tools import AnswerParser, tool_use, with_tokens
from ggmlpy.tools.json_formats import Generic
from tests.calling.test_random_calls import FORMATS
from tests.calling.writers import WRITERS, deepseek
from tests.unit.vocabularies import CONTROL, bpe_metadata

pytest.importorskip("llguidance")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CONTROLS = [
    "[TOOL_CALLS]", "[ARGS]", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call|>",
    "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", '<|"|>',
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|START_ACTION|>", "<|END_ACTION|>", "<minimax:tool_call>", "</minimax:tool_call>",
    *map(deepseek, ["tool calls begin", "tool call begin", "tool sep"]),
]  # fmt: skip


@cache
def tokenizer(controls: bool) -> Tokenizer:
    """A vocabulary with the marks as control tokens, or as text."""
    metadata = bpe_metadata()
    if controls:
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *CONTROLS]
        types = [*metadata["tokenizer.ggml.token_type"], *[CONTROL] * len(CONTROLS)]
        metadata["tokenizer.ggml.token_type"] = types
    return Tokenizer.from_metadata(metadata)


def hidden(text: str, controls: bool = True) -> int | None:
    """The token that a text is, if answers do not show it."""
    tokens = tokenizer(controls).encode_part(text, special=True)
    is_hidden = len(tokens) == 1 and not tokenizer(controls).token_bytes(tokens[0])
    return tokens[0] if is_hidden else None


def made(
    name: str, choice: Any, controls: bool = True, parallel: bool = True, tools: Any = TOOLS
) -> Grammar:
    use = tool_use(tools, choice, parallel)
    lark = FORMATS[name].grammar(use.callable, parallel=parallel, thinks=False)
    return Grammar.lark(with_tokens(lark, lambda text: hidden(text, controls)))


def is_whole(grammar: Grammar, text: str, controls: bool = True) -> bool:
    """Whether the grammar has the text."""
    matcher = Matchers(tokenizer(controls)).start(grammar)
    tokens = tokenizer(controls).encode_part(text, special=True)
    if matcher.n_valid(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.accept(token)
    return matcher.is_accepting


@pytest.mark.parametrize("controls", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", WRITERS)
def test_required_calls(name: str, controls: bool) -> None:
    write, grammar = WRITERS[name], made(name, "required", controls)
    for arguments in (
        {"city": "Bo"},
        {"city": "", "days": 3},
        {"city": "x", "unit": "F"},
        {"city": "x y", "days": -1, "unit": "C"},
    ):
        assert is_whole(grammar, write("weather", arguments), controls), arguments
    assert is_whole(grammar, write("now", {}), controls)
    for wrong in ({}, {"city": "x", "days": "many"}, {"city": "x", "unit": "K"}, {"x": 1}):
        assert not is_whole(grammar, write("weather", wrong), controls), wrong
    assert not is_whole(grammar, write("noon", {}), controls)
    assert not is_whole(grammar, "It rains.", controls)


@pytest.mark.parametrize("name", WRITERS)
def test_a_named_tool_is_the_only_one(name: str) -> None:
    grammar = made(name, {"type": "function", "function": {"name": "now"}})
    assert is_whole(grammar, WRITERS[name]("now", {}))
    assert not is_whole(grammar, WRITERS[name]("weather", {"city": "x"}))


def test_several_calls_only_where_they_are_allowed() -> None:
    call = WRITERS["Hermes"]("now", {})
    both = f"{call}\n{call}"
    assert is_whole(made("Hermes", "required"), both)
    assert not is_whole(made("Hermes", "required", parallel=False), both)


@pytest.mark.parametrize("name", WRITERS)
def test_schemas_that_refer_to_definitions(name: str) -> None:
    """As pydantic writes them."""
    point = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    parameters = {
        "properties": {"more": {"$ref": "#/$defs/Point"}},
        "required": ["more"],
        "$defs": {"Point": {**point, "additionalProperties": False}},
    }
    tools = [{"function": {"name": "weather", "parameters": parameters}}]
    grammar = made(name, "required", tools=tools)
    good, wrong = {"more": {"a": 1}}, {"more": {"a": "x"}}
    if name not in ("Gemma 4", "LFM2"):  # required, their objects are JSON
        assert is_whole(grammar, WRITERS[name]("weather", good))
    assert not is_whole(grammar, WRITERS[name]("weather", wrong))


@pytest.mark.parametrize("must", [True, False])
def test_an_answer_in_the_generic_form(must: bool) -> None:
    use = tool_use(TOOLS, "required" if must else "auto", None)
    write = Generic().grammar if must else Generic().answers
    grammar = Grammar.lark(with_tokens(write(use.callable, parallel=True, thinks=False), hidden))
    assert is_whole(grammar, WRITERS["generic"]("now", {}))
    assert is_whole(grammar, '{"response": "It rains."}') != must
    assert not is_whole(grammar, "It rains.")


def is_called(name: str, text: str, controls: bool, tools: Any = TOOLS) -> bool:
    """Whether the lazy grammar of a format has the calls of a text that may have calls."""
    calls = FORMATS[name].lazy(tool_use(tools, "auto", None).callable, parallel=True)
    assert calls is not None
    found = re.search(calls.trigger, calls.before + text)
    assert found is not None, text
    lark = with_tokens(calls.lark, lambda text: hidden(text, controls))
    return is_whole(
        Grammar.lark(lark), calls.begin + (calls.before + text)[found.end() :], controls
    )


@pytest.mark.parametrize("controls", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "generic"])
def test_calls_that_may_come(name: str, controls: bool) -> None:
    """What the families write, with arguments in any order, and any text behind it."""
    write = WRITERS[name]
    for arguments in (
        {"city": "Bo"},
        {"days": 3, "city": ""},
        {"unit": "F", "city": "x y", "days": -1},
    ):
        text = write("weather", arguments)
        assert is_called(name, text, controls), text
        assert is_called(name, f"{text}\nIt rains.", controls), text
    assert is_called(name, write("now", {}), controls)
    for wrong in (
        {}, {"days": 1}, {"city": "x", "days": "many"}, {"city": "x", "unit": "K"}, {"x": 1},
        {"city": "x", "more": 1},
    ):  # fmt: skip
        assert not is_called(name, write("weather", wrong), controls), wrong
    if name != "Llama 3":  # whose trigger has the name
        assert not is_called(name, write("noon", {}), controls)


@pytest.mark.parametrize("name", ["Hermes", "Llama 3", "Granite 3", "Mistral list"])
@pytest.mark.parametrize(
    "spelling",
    [
        {"separators": (",", ":")},
        {"separators": (" , ", " : ")},
        {"indent": 4},
        {"indent": "\t", "separators": (",", ":")},
    ],
    ids=str,
)
def test_calls_in_any_spelling(name: str, spelling: dict[str, Any]) -> None:
    text = WRITERS[name]("weather", {"city": "x", "days": 2})
    start, end = text.index("{"), text.rindex("}") + 1
    call = json.dumps(json.loads(text[start:end]), **spelling)
    assert is_called(name, text[:start] + call + text[end:], controls=False), call


@pytest.mark.parametrize("name", ["Hermes", "GLM", "LFM2"])
def test_many_parameters(name: str) -> None:
    """Those that are not required are not counted."""
    properties = {name: {"type": "integer"} for name in "abcdefghij"}
    parameters = {"properties": properties, "required": ["b", "h"]}
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    for arguments in ({"h": 1, "b": 2}, {"j": 1, "b": 2, "a": 3, "h": 4, "c": 5}):
        assert is_called(name, WRITERS[name]("f", arguments), True, tools)
    for wrong in ({}, {"b": 1}, {"a": 1, "j": 2, "h": 3}, {"b": 1, "h": 2, "k": 3}):
        assert not is_called(name, WRITERS[name]("f", wrong), True, tools)


def test_many_required_parameters_come_in_their_order() -> None:
    """Others than these would make too large a grammar."""
    properties = {name: {"type": "integer"} for name in "abcdefgh"}
    parameters = {"properties": properties, "required": list("bcdefgh")}
    use = tool_use([{"function": {"name": "f", "parameters": parameters}}], "auto", None)
    for name in ("Hermes", "GLM", "LFM2"):
        calls = FORMATS[name].lazy(use.callable, parallel=True)
        assert calls is not None
        grammar = Grammar.lark(with_tokens(calls.lark, hidden))
        ordered = dict.fromkeys("bcdefgh", 1)
        assert is_whole(grammar, WRITERS[name]("f", ordered))
        assert is_whole(grammar, WRITERS[name]("f", {"a": 1, **ordered}))
        assert not is_whole(grammar, WRITERS[name]("f", {**ordered, "a": 1}))
        assert not is_whole(grammar, WRITERS[name]("f", dict.fromkeys("bcdefg", 1)))


LISTS = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "label": {"type": "string", "enum": ["a"]}},
            "required": ["x"],
        },
        "flag": {"type": "boolean"},
    },
    "required": ["names"],
}


@pytest.mark.parametrize("name", ["Gemma 4", "LFM2", "Qwen3-Coder", "GLM", "Hermes"])
def test_lists_and_objects(name: str) -> None:
    """As the family writes them, Gemma with its own quotes."""
    tools = [{"function": {"name": "f", "parameters": LISTS}}]
    grammar, write = made(name, "required", tools=tools), WRITERS[name]
    good: list[dict[str, Any]]
    good = [{"names": ["x"]}, {"names": ["x", "y"], "at": {"x": 1.5}, "flag": True}]
    if name != "LFM2":  # whose Python is JSON where a call is required
        for arguments in good:
            assert is_whole(grammar, write("f", arguments)), arguments
    for arguments in [*good, {"flag": False, "at": {"label": "a", "x": 0}, "names": ["x"]}]:
        assert is_called(name, write("f", arguments), True, tools), arguments
    wrong: dict[str, Any]
    for wrong in (
        {"names": []}, {"names": list("abcd")}, {"names": [1]}, {"names": ["x"], "at": {}},
        {"names": ["x"], "at": {"x": "1"}}, {"names": ["x"], "at": {"x": 1, "label": "b"}},
    ):  # fmt: skip
        assert not is_whole(grammar, write("f", wrong)), wrong
        assert not is_called(name, write("f", wrong), True, tools), wrong


WORDS = [
    "type", "enum", "const", "items", "properties", "required", "anyOf", "oneOf", "minItems",
    "maxItems", "minLength", "maxLength", "pattern", "format", "additionalProperties", "$ref",
    "$defs", "string", "object", "array", "integer", "null", "date", "a",
]  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS), inner, min_size=1, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(schema=ANYTHING, required=ANYTHING)
@example(schema={"anyOf": 5}, required=["a"])
@example(schema={"type": "object", "properties": 5}, required=["a"])
def test_any_schema_is_written(schema: Any, required: Any) -> None:
    """What is wrong in one is a matter of the library: nothing raises before."""
    parameters = {"type": "object", "properties": {"a": schema}, "required": required}
    use = tool_use([{"function": {"name": "f", "parameters": parameters}}], "auto", None)
    for format in FORMATS.values():
        format.lazy(use.callable, parallel=True)
        format.grammar(use.callable, parallel=True, thinks=False)
    parser = AnswerParser(FORMATS["GLM"], ["f"], types=use.types)
    parser.push(WRITERS["GLM"]("f", {"a": "1"}))
    parser.finish()
