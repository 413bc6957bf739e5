"""The grammars of required calls have what the families write, and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ggmlpy.grammar import Grammar, Matchers
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.tools import tool_use, with_tokens
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
