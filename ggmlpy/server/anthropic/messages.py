"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ggmlpy.engine.generation import Request
from ggmlpy.server.anthropic.conversation import read_messages, read_tools
from ggmlpy.server.anthropic.form import MessageForm, events
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import (
    anything,
    flag,
    integer,
    listed,
    mapping,
    needed,
    one_of,
    read,
    text,
)
from ggmlpy.server.generation import start
from ggmlpy.server.openai.chat import chat_options, count_input

_MOST_STOPS = 64


def _stop(name: str, value: Any) -> str:
    found = text(name, value)
    if not found:
        raise invalid(name, f"{name} is empty: it must be a string that is not")
    return found


_CALL = {
    "model": text,
    "stream": flag,
    "stop_sequences": listed(_stop, most=_MOST_STOPS),
    "thinking": mapping,
    "output_config": mapping,
    "output_format": mapping,
    "metadata": mapping,
    "service_tier": text,
    "mcp_servers": listed(mapping),
    "container": anything,
}
_UNSUPPORTED = {
    "mcp_servers": "call them, and send their tools in tools",
    "container": "it is run by Anthropic's servers",
}


async def messages(call: Call) -> Response | dict[str, Any]:
    """Answers messages, whole or as a stream of events."""
    max_tokens = needed(call.body, "max_tokens", integer(1))
    asked = read(call.body, _CALL)
    given = read_messages(call.body)
    body = {**_as_openai(call.body, asked), "max_tokens": max_tokens}
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm, options = hosted.llm.llama, chat_options(call, hosted, body)

    def make() -> list[tuple[Request, MessageForm]]:
        request, chat = llm.prepare_chat_completion(given, **options)
        stops = asked.get("stop_sequences", [])
        return [(request, MessageForm(chat, hosted.name, len(request.prompt), stops))]

    generation = await start(call, hosted, make)
    if asked.get("stream"):
        return call.stream(events(generation))
    (result,) = await generation.whole()
    return result


async def count_tokens(call: Call) -> dict[str, int]:
    """How many tokens the prompt of messages has, which is not run."""
    asked = read(call.body, _CALL)
    given = read_messages(call.body)
    return await count_input(call, asked.get("model"), given, _as_openai(call.body, asked))


def _as_openai(body: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a body as OpenAI's API has them. What is called the same there is kept, such
    as `temperature` and `top_k`, and llama-server's options too. Raises ApiError."""
    for name, why in _UNSUPPORTED.items():
        if asked.get(name):
            raise invalid(name, f"{name} is not supported: {why}")
    made = {key: value for key, value in body.items() if key not in _OTHER}
    made |= read_tools(body)
    made["continue_final_message"] = body["messages"][-1]["role"] == "assistant"
    made["stop"] = asked.get("stop_sequences", [])
    _set_thinking(made, asked.get("thinking", {}))
    kinds = {"format": mapping, "effort": text}
    config = read(asked.get("output_config", {}), kinds, "output_config")
    if "effort" in config:
        made["reasoning_effort"] = config["effort"]
    name = "output_config.format" if "format" in config else "output_format"
    form = config.get("format", asked.get("output_format"))
    if form is not None:
        kind = needed(form, "type", one_of("json_schema"), name)
        schema = needed(form, "schema", mapping, name)
        made["response_format"] = {"type": kind, "json_schema": {"schema": schema}}
    return made


# What is read here, or called otherwise in OpenAI's API.
_OTHER = frozenset(
    {"tools", "tool_choice", "stop_sequences", "thinking", "output_config", *_UNSUPPORTED}
)


def _set_thinking(made: dict[str, Any], thinking: Mapping[str, Any]) -> None:
    """A budget limits the reasoning; without thinking the template is told so."""
    if not thinking:
        return
    kind = needed(thinking, "type", one_of("enabled", "disabled", "adaptive"), "thinking")
    if kind == "enabled":
        made["reasoning_budget"] = needed(thinking, "budget_tokens", integer(1), "thinking")
    kwargs = mapping("chat_template_kwargs", made.get("chat_template_kwargs") or {})
    made["chat_template_kwargs"] = {"enable_thinking": kind != "disabled", **kwargs}
