"""The grammars of required calls have what the families write, and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ggmlpy.grammar import Grammar, Matchers
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.tools import tool_use, with_tokens
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


def made(name: str, choice: Any, controls: bool = True, parallel: bool = True) -> Grammar:
    vocabulary = tokenizer(controls)

    def hidden(text: str) -> int | None:
        tokens = vocabulary.encode_part(text, special=True)
        is_hidden = len(tokens) == 1 and not vocabulary.token_bytes(tokens[0])
        return tokens[0] if is_hidden else None

    use = tool_use(TOOLS, choice, parallel)
    lark = FORMATS[name].grammar(use.callable, parallel=parallel, thinks=False)
    return Grammar.lark(with_tokens(lark, hidden))


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
