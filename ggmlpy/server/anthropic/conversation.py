"""Messages and tools of Anthropic's API to OpenAI's, which chat templates take.

   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "7"},
                                {"type": "text", "text": "Go on."}]}
-> {"role": "tool", "tool_call_id": "a", "name": "add", "content": "7"}
   {"role": "user", "content": "Go on."}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import (
    either,
    flag,
    function_tool,
    listed,
    mapping,
    needed,
    one_of,
    read,
    text,
    tool_list,
)

Message = dict[str, Any]

# Claude Code's first line of a system prompt: it differs for each request, and no prompt would
# begin as the one before.
_BILLING = "x-anthropic-billing-header:"
_BLOCKS = either(text, listed(mapping), must="a string, or a list of content blocks")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_messages(body: Mapping[str, Any]) -> list[Message]:
    """The messages of a body, behind its system prompt. Raises ApiError."""
    made: list[Message] = []
    system = read(body, {"system": _BLOCKS}).get("system")
    if system:
        blocks = [_text(at, block) for at, block in _blocks("system", system)]
        texts = [each for each in blocks if not each.startswith(_BILLING)]
        if texts:
            made.append({"role": "system", "content": "\n\n".join(texts)})
    tools: dict[str, str] = {}  # the name of the tool of each call
    given = needed(body, "messages", listed(mapping, least=1))
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        role = needed(message, "role", one_of("user", "assistant", "system"), where)
        content = needed(message, "content", _BLOCKS, where)
        if role == "assistant":
            made.append(_of_assistant(f"{where}.content", content, tools))
        elif role == "user":
            made += _of_user(f"{where}.content", content, tools)
        else:
            made.append({"role": "system", "content": _texts(f"{where}.content", content)})
    return made


def _of_user(where: str, content: Any, tools: Mapping[str, str]) -> list[Message]:
    """Texts, and results of tools as messages of their own."""
    made: list[Message] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            made.append({"role": "user", "content": "\n".join(texts)})
            texts.clear()

    for at, block in _blocks(where, content):
        if block["type"] == "tool_result":
            flush()
            made.append(_result(at, block, tools))
        else:
            texts.append(_text(at, block))
    flush()
    return made


def _result(at: str, block: Mapping[str, Any], tools: Mapping[str, str]) -> Message:
    id = needed(block, "tool_use_id", text, at)
    content = block.get("content")
    if content is not None:
        content = _texts(f"{at}.content", _BLOCKS(f"{at}.content", content))
    made = {"role": "tool", "tool_call_id": id, "content": content or ""}
    return made | ({"name": tools[id]} if id in tools else {})


def _of_assistant(where: str, content: Any, tools: dict[str, str]) -> Message:
    texts, reasoning, calls = [], [], []
    for at, block in _blocks(where, content):
        kind = block["type"]
        if kind == "thinking":
            reasoning.append(needed(block, "thinking", text, at))
        elif kind == "tool_use":
            id, name = needed(block, "id", text, at), needed(block, "name", text, at)
            arguments = json.dumps(needed(block, "input", mapping, at), ensure_ascii=False)
            tools[id] = name
            function = {"name": name, "arguments": arguments}
            calls.append({"id": id, "type": "function", "function": function})
        elif kind != "redacted_thinking":
            texts.append(_text(at, block))
    made: Message = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning:
        made["reasoning_content"] = "\n".join(reasoning)
    if calls:
        made["tool_calls"] = calls
    return made


def _blocks(where: str, content: str | list[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Blocks with their names in errors; a string is one of text."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    found = [(f"{where}[{i}]", each) for i, each in enumerate(content)]
    for at, each in found:
        if not isinstance(each.get("type"), str):
            raise invalid(f"{at}.type", f"{at}.type is missing: each content block has one")
    return found


def _texts(where: str, content: str | list[Any]) -> str:
    return "\n".join(_text(at, block) for at, block in _blocks(where, content))


def _text(at: str, block: Mapping[str, Any]) -> str:
    kind = block["type"]
    if kind == "document":
        return _titled(at, block, ("title", "context"), _text_of_document(at, block))
    if kind == "search_result":
        content = needed(block, "content", _BLOCKS, at)
        return _titled(at, block, ("title", "source"), _texts(f"{at}.content", content))
    if kind != "text":
        raise invalid(
            f"{at}.type", f"{at} is of type {kind:.40}, which is not supported here: send text"
        )
    return str(needed(block, "text", text, at))


def _text_of_document(at: str, block: Mapping[str, Any]) -> str:
    at, source = f"{at}.source", needed(block, "source", mapping, at)
    kind = needed(source, "type", text, at)
    if kind == "text":
        return str(needed(source, "data", text, at))
    if kind == "content":
        return _texts(f"{at}.content", needed(source, "content", _BLOCKS, at))
    raise invalid(
        f"{at}.type",
        f"{at} is of type {kind:.40}, which is not supported here: a document must be text, or a"
        " content of texts",
    )


def _titled(at: str, block: Mapping[str, Any], names: Sequence[str], content: str) -> str:
    """The text of a document or search result, behind those fields that say what it is."""
    return "\n".join([*read(block, dict.fromkeys(names, text), at).values(), content])


def read_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """`tools`, `tool_choice` and `parallel_tool_calls` as in OpenAI's API. Raises ApiError."""
    asked = read(body, {"tools": tool_list, "tool_choice": mapping})
    made: dict[str, Any] = {}
    if asked.get("tools"):
        made["tools"] = [_tool(f"tools[{i}]", each) for i, each in enumerate(asked["tools"])]
    choice = asked.get("tool_choice")
    if choice is not None:
        kind = needed(choice, "type", one_of(*_CHOICES, "tool"), "tool_choice")
        if kind == "tool":
            name = needed(choice, "name", text, "tool_choice")
            made["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif "tools" in made or kind == "any":
            made["tool_choice"] = _CHOICES[kind]
        single = read(choice, {"disable_parallel_tool_use": flag}, "tool_choice")
        if single:
            made["parallel_tool_calls"] = not single["disable_parallel_tool_use"]
    return made


def _tool(at: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise invalid(
            f"{at}.type",
            f"{at} is of type {json.dumps(kind)[:60]}, which Anthropic's servers run or define:"
            " tools here have a name and an input_schema",
        )
    return function_tool(at, tool, "input_schema", is_needed=True)
