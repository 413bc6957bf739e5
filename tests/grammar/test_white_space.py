"""White space in JSON, as a schema asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from ggmlpy import Grammar, Llama, packaged_model
from ggmlpy.compat.llama_cpp import LlamaGrammar

pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"properties": {"type": "boolean"}, "enum": {"type": "boolean"}},
    "required": ["properties", "enum"],
}


def answer(grammar: Grammar) -> str:
    with Llama(packaged_model(), n_ctx=256) as llm:
        result = llm("a", grammar=grammar, max_tokens=60, temperature=0)
    text: str = result["choices"][0]["text"]
    return text


def test_none_if_it_is_not_flexible() -> None:
    schema = {**SCHEMA, "additionalProperties": False}
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    text = answer(Grammar.json_schema(compact))
    assert text.replace("true", "T").replace("false", "T") == '{"properties":T,"enum":T}'


def test_a_space_at_most_in_llama_cpp_pythons_grammars() -> None:
    """And no properties that the schema does not name, whatever their names are."""
    text = answer(LlamaGrammar.from_json_schema(Grammar.json_schema(SCHEMA).text).as_own())
    assert "  " not in text and "\n" not in text
    plain = text.replace("true", "T").replace("false", "T").replace(" ", "")
    assert plain == '{"properties":T,"enum":T}'
