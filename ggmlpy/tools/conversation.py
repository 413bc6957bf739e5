"""Messages and tools to a prompt, in the form that a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from ggmlpy.common.arguments import kind_of
from ggmlpy.errors import ArgumentError, TemplateError
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.tools.definitions import ToolUse
from ggmlpy.tools.formats import Format, listed
from ggmlpy.tools.json_formats import Generic
from ggmlpy.tools.recognition import HasToken, format_of

_TOOL = "ggmlpy_probe_tool"  # names that no template has
_KEY = "ggmlpy_probe_key"
_PROBE = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "Does.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}

_DESCRIPTION = """\
You can call these tools, which are described by JSON schemas of their parameters:

{tools}

Answer in JSON. To call tools: {{"tool_calls": [{{"name": …, "arguments": {{…}}}}]}}. To say \
something: {{"response": …}}."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and how its answer is read."""

    prompt: str
    format: Format
    thinks: bool  # whether it ends within the reasoning


class Conversation:
    """Renders conversations by the template of a model."""

    def __init__(self, template: ChatTemplate, has_token: HasToken) -> None:
        self._template = template
        self._format = format_of(template.source, has_token)

    def render(
        self, messages: Sequence[Mapping[str, Any]], use: ToolUse, variables: Mapping[str, Any]
    ) -> Rendered:
        """The prompt for messages and tools; `variables` are further ones of the template.

        Raises TemplateError for messages or calls in them that cannot be rendered.
        """
        format = self._format
        functions = [tool.definition.get("function", {}) for tool in use.tools]
        if not use.tools:
            if not self._knows_tools and not self._describes_tools:
                messages = _without_roles(messages)
            prompt = self._template.render(self._with_arguments(messages), **variables)
        elif self._knows_tools and format.calls_tools:
            given = self._with_arguments(messages)
            prompt = self._with_tools(given, use, variables)
        elif self._describes_tools:
            given = self._with_arguments(messages)
            prompt = self._described(given, format.description(functions) or "", variables)
        else:
            format = Generic(format.think)
            text = _DESCRIPTION.format(tools=listed(functions))
            prompt = self._described(_without_roles(messages), text, variables)
        think = format.think
        thinks = think is not None and prompt.rstrip().endswith(think[0])
        return Rendered(prompt, format, thinks)

    def _with_tools(
        self, messages: Sequence[Mapping[str, Any]], use: ToolUse, variables: Mapping[str, Any]
    ) -> str:
        """The prompt of a template that writes tools. Some can only write those that have a
        description and parameters, which are then added where there are none."""
        tools = [dict(tool.definition) for tool in use.tools]
        try:
            return self._template.render(messages, tools=tools, **variables)
        except TemplateError:
            whole = [tool.whole_definition for tool in use.tools]
            if whole == tools:
                raise
            return self._template.render(messages, tools=whole, **variables)

    def _described(
        self, messages: Sequence[Mapping[str, Any]], text: str, variables: Mapping[str, Any]
    ) -> str:
        """The prompt of a template that writes no tools: a system message describes them, or where
        the template takes none the first message of the user."""
        first = messages[0] if messages else {}
        if isinstance(first, Mapping) and first.get("role") == "system":
            first = {**first, "content": f"{first.get('content', '')}\n\n{text}"}
            return self._template.render([first, *messages[1:]], **variables)
        try:
            system = {"role": "system", "content": text}
            return self._template.render([system, *messages], **variables)
        except TemplateError:
            if not isinstance(first, Mapping) or not isinstance(first.get("content"), str):
                raise
            user = {**first, "content": f"{text}\n\n{first['content']}"}
            return self._template.render([user, *messages[1:]], **variables)

    @cached_property
    def _knows_tools(self) -> bool:
        """Whether the template writes the tools that it is given."""
        try:
            prompt = self._template.render([{"role": "user", "content": "Hello"}], tools=[_PROBE])
        except TemplateError:
            return False
        return _TOOL in prompt

    @cached_property
    def _describes_tools(self) -> bool:
        """Whether the template writes calls but no tools, which the format describes then."""
        if self._knows_tools or self._format.description([]) is None:
            return False
        return self._call_form is not None

    @cached_property
    def _call_form(self) -> tuple[bool, str | None] | None:
        """How the template takes calls in messages: whether their arguments are objects or JSON,
        and what stands for a missing text. None if it does not write calls at all."""
        for is_object, content in product((True, False), ("", None)):
            arguments: Any = {_KEY: 1} if is_object else json.dumps({_KEY: 1})
            prompt = self._probed(arguments, content)
            if _KEY in prompt and f"'{_KEY}'" not in prompt and f'\\"{_KEY}' not in prompt:
                return is_object, content
        return None

    def _probed(self, arguments: Any, content: str | None) -> str:
        """The prompt of a conversation with a call; "" if it cannot be rendered."""
        call: dict[str, Any] = {"id": "abcdefghi", "type": "function"}
        call |= {"function": {"name": _TOOL, "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "content": "1", "tool_call_id": "abcdefghi", "name": _TOOL},
        ]
        try:
            return self._template.render(messages, tools=[_PROBE] if self._knows_tools else None)
        except TemplateError:
            return ""

    def _with_arguments(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages, with calls as the template takes them."""
        return [
            self._converted(message, f"messages[{i}]") if _has_calls(message) else message
            for i, message in enumerate(messages)
        ]

    def _converted(self, message: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        if self._call_form is None:
            return _as_text(message, where, self._format)
        is_object, no_content = self._call_form
        calls = []
        for j, call in enumerate(_calls_of(message, where)):
            arguments = _arguments_of(call, f"{where}: tool_calls[{j}]")
            given = arguments if is_object else json.dumps(arguments, ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": given}})
        return {**message, "content": message.get("content") or no_content, "tool_calls": calls}


def _as_text(message: Mapping[str, Any], where: str, format: Format) -> dict[str, Any]:
    """A message with calls in its text, behind what it says."""
    calls = [
        (str(call["function"]["name"]), _arguments_of(call, where))
        for call in _calls_of(message, where)
    ]
    text = format.written(calls)
    said = message.get("content")
    return {"role": "assistant", "content": f"{said}\n\n{text}" if said else text}


def _without_roles(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages for a template that knows no tools: calls and results as text."""
    made: list[Any] = []
    for i, message in enumerate(messages):
        if _has_calls(message):
            made.append(_as_text(message, f"messages[{i}]", Format()))
        elif isinstance(message, Mapping) and message.get("role") == "tool":
            named = {key: message[key] for key in ("name", "tool_call_id") if key in message}
            result = {**named, "content": message.get("content")}
            text = json.dumps({"tool_response": result}, ensure_ascii=False, default=str)
            made.append({"role": "user", "content": text})
        else:
            made.append(message)
    return made


def _has_calls(message: Any) -> bool:
    return isinstance(message, Mapping) and bool(message.get("tool_calls"))


def _calls_of(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The calls of a message. Raises TemplateError for others than OpenAI's form."""
    calls = message["tool_calls"]
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise TemplateError(f"{where}: tool_calls is {kind_of(calls)}: it must be a list")
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TemplateError(
                f'{where}: tool_calls[{j}] is {call!r:.80}: it must be {{"function": {{"name": …,'
                ' "arguments": …}}'
            )
    return [dict(call) for call in calls]


def _arguments_of(call: Mapping[str, Any], where: str) -> Any:
    """The arguments of a call as an object."""
    arguments = call["function"].get("arguments", {})
    if isinstance(arguments, Mapping):
        return dict(arguments)
    try:
        found = json.loads(arguments or "{}")
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TemplateError(
            f"{where}: arguments is {arguments!r:.80}: it must be a JSON object, or the text of one"
        )
    return found


def template_variables(given: Any) -> dict[str, Any]:
    """The option `chat_template_kwargs`. Raises ArgumentError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentError(
            f"chat_template_kwargs is {kind_of(given)}: it must be a dict of variables by name"
        )
    taken = {"messages", "tools", "add_generation_prompt"} & given.keys()
    if taken:
        raise ArgumentError(f"chat_template_kwargs has {min(taken)!r}, which has another option")
    return dict(given)
