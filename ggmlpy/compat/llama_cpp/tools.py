"""Tools and response formats: what they ask of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ggmlpy.compat.llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar


def as_tools(
    functions: list[Any] | None, function_call: Any, tools: list[Any] | None, tool_choice: Any
) -> tuple[list[Any] | None, Any]:
    """Tools and the choice of one, also where they were given by their older names."""
    if functions is not None:
        tools = [{"type": "function", "function": function} for function in functions]
    if function_call in ("none", "auto"):
        tool_choice = function_call
    elif isinstance(function_call, Mapping) and "name" in function_call:
        tool_choice = {"type": "function", "function": {"name": function_call["name"]}}
    return tools, tool_choice


def named_tool(tools: list[Any] | None, tool_choice: Any) -> Any | None:
    """The tool that a choice names. Raises ValueError if it is not among them."""
    if tools is None or not isinstance(tool_choice, Mapping):
        return None
    name = tool_choice["function"]["name"]
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    known = ", ".join(tool["function"]["name"] for tool in tools)
    raise ValueError(f"Tool choice '{name}' not found in tools: there are {known}")


def grammar_of_arguments(tool: Any) -> LlamaGrammar:
    """The grammar of the arguments of a call."""
    return _grammar_of_schema(tool["function"].get("parameters", {}))


def grammar_for(response_format: Mapping[str, Any]) -> LlamaGrammar | None:
    """The grammar that `response_format` asks for, if any.

    {"type": "json_object"} with or without "schema", and OpenAI's {"type": "json_schema"}.
    """
    kind = response_format.get("type")
    if kind == "json_schema":
        return _grammar_of_schema(response_format["json_schema"]["schema"])
    if kind != "json_object":
        return None
    if "schema" in response_format:
        return _grammar_of_schema(response_format["schema"])
    return LlamaGrammar.from_string(JSON_GBNF)


def _grammar_of_schema(schema: Any) -> LlamaGrammar:
    """The grammar of a schema; that of any JSON object if it cannot be followed, as there."""
    try:
        return LlamaGrammar.from_json_schema(json.dumps(schema))
    except ValueError:
        return LlamaGrammar.from_string(JSON_GBNF)
