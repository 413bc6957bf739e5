"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ggmlpy.engine.completion import ChatForm
from ggmlpy.engine.generation import Request
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import (
    anything,
    either,
    flag,
    integer,
    listed,
    mapping,
    needed,
    read,
    text,
    tool_list,
)
from ggmlpy.server.generation import Generation, start
from ggmlpy.server.hosted import Hosted
from ggmlpy.server.openai.chat_messages import template_messages
from ggmlpy.server.openai.results import events, whole
from ggmlpy.server.options import read_options

MOST_CHOICES = 128
_CHAT = {
    "logprobs": flag,
    "top_logprobs": integer(0, 20),
    "tools": tool_list,
    "tool_choice": either(text, mapping, must="a string, or an object that names a function"),
    "parallel_tool_calls": flag,
    "chat_template_kwargs": mapping,
    "reasoning_format": text,
    "reasoning_budget": integer(-1),
    "reasoning_effort": text,
    "continue_final_message": flag,
}
_CALL = {
    "n": integer(1, MOST_CHOICES),
    "stream": flag,
    "stream_options": mapping,
    "model": text,
    "functions": anything,
    "function_call": anything,
    "modalities": listed(text),
    "audio": anything,
    "web_search_options": anything,
    "prediction": mapping,  # could be a draft: it changes no result
}
_UNSUPPORTED = {
    "functions": "use tools and tool_choice",
    "function_call": "use tools and tool_choice",
    "web_search_options": "this server searches nothing",
}


async def chat_completions(call: Call) -> Response | dict[str, Any]:
    """Answers messages, whole or as a stream of chunks."""
    body = call.body
    asked = read(body, _CALL)
    messages = needed(body, "messages", listed(mapping, least=1))
    for name, why in _UNSUPPORTED.items():
        if name in asked:
            raise invalid(name, f"{name} is not supported: {why}")
    if set(asked.get("modalities", ())) - {"text"} or "audio" in asked:
        raise invalid("modalities", "modalities: this server answers with text only")
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    generation = await start_chat(call, hosted, messages, asked.get("n", 1))
    if asked.get("stream"):
        return call.stream(events(generation, **wanted_in_chunks(call.body)))
    return whole(generation, await generation.whole())


def wanted_in_chunks(body: Mapping[str, Any]) -> dict[str, bool]:
    """What a stream tells besides, as arguments of `events`: at its end the usage, or in each chunk
    the timings."""
    asked = read(body, {"stream_options": mapping, "timings_per_token": flag})
    given = asked.get("stream_options", {})
    stream_options = read(given, {"include_usage": flag}, "stream_options")
    return {
        "with_usage": stream_options.get("include_usage", False),
        "with_timings": asked.get("timings_per_token", False),
    }


async def start_chat(
    call: Call, hosted: Hosted, messages: list[dict[str, Any]], n: int = 1
) -> Generation:
    """The answers to messages, with the options of the call's body, as the model's turn comes."""
    llm, options = hosted.llm.llama, chat_options(call, hosted, call.body)

    def make() -> list[tuple[Request, ChatForm]]:
        given = template_messages(messages, llm.chat_template.source)
        return [llm.prepare_chat_completion(given, **options)]

    return await start(call, hosted, make, n)


def chat_options(call: Call, hosted: Hosted, body: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `Llama.create_chat_completion` that a body of this API has, over the server's."""
    asked = read(body, _CHAT)
    if asked.get("top_logprobs") and not asked.get("logprobs"):
        raise invalid("top_logprobs", "top_logprobs is given, but logprobs is not true")
    options = {
        "max_tokens": None,
        **call.settings.chat_defaults,
        **read_options(body, call.settings.defaults, hosted.llm.llama.tokenizer),
        **asked,
        "model": hosted.name,
    }
    effort = options.pop("reasoning_effort", None)
    told: dict[str, Any] = {}
    if effort is not None:
        told = {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    kwargs = {**told, **asked.get("chat_template_kwargs", {})}
    options["chat_template_kwargs"] = call.settings.template_kwargs(kwargs)
    return options


async def chat_input_tokens(call: Call) -> dict[str, Any]:
    """How many tokens the prompt of a chat completion has, which is not run."""
    messages = needed(call.body, "messages", listed(mapping, least=1))
    name = read(call.body, {"model": text}).get("model")
    return {"object": "response.input_tokens", **await count_input(call, name, messages, call.body)}


async def count_input(
    call: Call, name: str | None, messages: list[dict[str, Any]], body: Mapping[str, Any]
) -> dict[str, int]:
    """The `input_tokens` of messages, with the options of a body of this API."""
    hosted = await call.stack.enter_async_context(call.models.using(name))
    llm, options = hosted.llm.llama, chat_options(call, hosted, body)

    def count() -> int:
        given = template_messages(messages, llm.chat_template.source)
        return len(llm.chat_tokens(given, **options))

    return {"input_tokens": await call.in_pool(count)}
