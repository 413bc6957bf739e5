"""Input items and tools of the Responses API to messages and tools of chat completions.

   {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], …}
   {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"}
   {"type": "function_call_output", "call_id": "a", "output": "7"}
-> {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": […]}
   {"role": "tool", "tool_call_id": "a", "name": "add", "content": "7"}
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggmlpy.server.errors import ApiError, invalid
from ggmlpy.server.fields import (
    anything,
    either,
    function_tool,
    listed,
    mapping,
    needed,
    one_of,
    read,
    text,
    tool_list,
    wrong,
)

Message = dict[str, Any]
Item = dict[str, Any]
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}

_INPUT = either(text, listed(mapping, least=1), must="a string, or a list of items")
_CONTENT = either(text, listed(mapping), must="a string, or a list of content parts")
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_CHOICES = ("auto", "none", "required")


def read_input(body: Mapping[str, Any], before: Sequence[Item] = ()) -> list[Message]:
    """The messages of `instructions`, of the items `before`, and of `input`. Raises ApiError."""
    conversation = _Conversation()
    instructions = read(body, {"instructions": text}).get("instructions")
    if instructions:
        conversation.say("system", instructions)
    for item in before:
        conversation.add("previous_response_id", item)
    given = needed(body, "input", _INPUT)
    if isinstance(given, str):
        conversation.say("user", given)
    else:
        for i, item in enumerate(given):
            conversation.add(f"input[{i}]", item)
    return conversation.messages


def as_items(given: str | list[Item]) -> list[Item]:
    """An `input` that was read as items, each with an id and its content in parts."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_as_item(item) for item in given]


def _as_item(item: Item) -> Item:
    kind = item.get("type") or "message"
    made = {**item, "type": kind, "id": item.get("id") or f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"}
    if kind == "message":
        said = item["content"]
        name = "output_text" if item["role"] == "assistant" else "input_text"
        made["content"] = [{"type": name, "text": said}] if isinstance(said, str) else said
        if name == "output_text":
            made["content"] = [{"annotations": [], **part} for part in made["content"]]
        made.setdefault("status", "completed")
    return made


class _Conversation:
    """Messages that items become. Items of one turn of the assistant are one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tools: dict[str, str] = {}  # the name of the tool of each call
        self._kinds: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
            "message": self._add_message,
            "reasoning": self._add_reasoning,
            "function_call": self._add_call,
            "function_call_output": self._add_output,
        }

    def add(self, at: str, item: Mapping[str, Any]) -> None:
        kind = text(f"{at}.type", item.get("type", "message"))
        if kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise invalid(f"{at}.type", f"{at} is of type {kind:.40}: it must be one of {known}")
        self._kinds[kind](at, item)

    def say(self, role: str, said: str) -> None:
        """Text of a role; system texts that follow each other are one message."""
        last = self.messages[-1] if self.messages else {}
        if role == "assistant":
            message = self._assistant()
            message["content"] = _joined(message["content"], said, "\n")
        elif role == "system" and last.get("role") == "system":
            last["content"] = _joined(last["content"], said, "\n\n")
        else:
            self.messages.append({"role": role, "content": said})

    def _assistant(self) -> Message:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]

    def _add_message(self, at: str, item: Mapping[str, Any]) -> None:
        role = needed(item, "role", one_of("user", "assistant", "system", "developer"), at)
        said = needed(item, "content", _text_of, at)
        self.say("system" if role == "developer" else role, said)

    def _add_reasoning(self, at: str, item: Mapping[str, Any]) -> None:
        for name in ("content", "summary"):
            if item.get(name):
                found = _text_of(f"{at}.{name}", item[name])
                message = self._assistant()
                before = message.get("reasoning_content", "")
                message["reasoning_content"] = _joined(before, found, "\n")
                return

    def _add_call(self, at: str, item: Mapping[str, Any]) -> None:
        id, name = needed(item, "call_id", text, at), needed(item, "name", text, at)
        self._tools[id] = name
        function = {"name": name, "arguments": needed(item, "arguments", text, at)}
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": id, "type": "function", "function": function})

    def _add_output(self, at: str, item: Mapping[str, Any]) -> None:
        id = needed(item, "call_id", text, at)
        output = needed(item, "output", _text_of, at)
        made = {"role": "tool", "tool_call_id": id, "content": output}
        self.messages.append(made | ({"name": self._tools[id]} if id in self._tools else {}))


def _joined(before: str, more: str, between: str) -> str:
    return f"{before}{between}{more}" if before and more else before or more


def _text_of(at: str, content: Any) -> str:
    """The text of a string, or of a list of parts."""
    content = _CONTENT(at, content)
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type")
        name = "refusal" if kind == "refusal" else "text"
        if name == "text" and kind not in _TEXTS:
            raise invalid(
                f"{at}[{i}].type",
                f"{at}[{i}] is of type {json.dumps(kind)[:40]}, which is not supported: send text",
            )
        texts.append(needed(part, name, text, f"{at}[{i}]"))
    return "\n".join(texts)


def read_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """`tools` and `tool_choice` as in chat completions. Raises ApiError."""
    asked = read(body, {"tools": tool_list, "tool_choice": anything})
    made: dict[str, Any] = {}
    if asked.get("tools"):
        made["tools"] = [_tool(f"tools[{i}]", each) for i, each in enumerate(asked["tools"])]
    choice = asked.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = needed(choice, "name", text, "tool_choice")
        made["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        made["tool_choice"] = _allowed_tools(choice)
    elif choice in _CHOICES:
        if "tools" in made or choice == "required":
            made["tool_choice"] = choice
    elif choice is not None:
        raise _wrong_choice(choice)
    return made


def _allowed_tools(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice of some tools as chat completions have it."""
    mode = read(choice, {"mode": one_of("auto", "required")}, "tool_choice").get("mode", "auto")
    names = []
    for i, tool in enumerate(needed(choice, "tools", listed(mapping, least=1), "tool_choice")):
        at = f"tool_choice.tools[{i}]"
        needed(tool, "type", one_of("function"), at)
        names.append(needed(tool, "name", text, at))
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _wrong_choice(choice: Any) -> ApiError:
    must = '"auto", "none", "required", or {"type": "function", "name": …}, or "allowed_tools"'
    return wrong("tool_choice", choice, must)


def _tool(at: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise invalid(
            f"{at}.type",
            f"{at} is of type {json.dumps(kind)[:60]}: this server has no tools of its own, a tool"
            ' must be of type "function"',
        )
    return function_tool(at, tool, "parameters", is_needed=False)
