"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ggmlpy.engine.generation import Request
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import flag, integer, listed, mapping, needed, one_of, read, text
from ggmlpy.server.generation import start
from ggmlpy.server.openai.chat import chat_options, count_input
from ggmlpy.server.openai.response_form import ResponseForm, events
from ggmlpy.server.openai.response_items import as_items, read_input, read_tools
from ggmlpy.server.openai.stored import before, keep, with_items
from ggmlpy.server.openai.truncation import fitting

_LOGPROBS = "message.output_text.logprobs"
# What OpenAI's API can include: of tools that it runs, and of what is in answers here anyway.
_INCLUDABLE = (
    _LOGPROBS, "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs",
    "message.input_image.image_url", "computer_call_output.output.image_url",
)  # fmt: skip
_CALL = {
    "model": text,
    "stream": flag,
    "max_output_tokens": integer(1),
    "parallel_tool_calls": flag,
    "text": mapping,
    "reasoning": mapping,
    "include": listed(one_of(*_INCLUDABLE)),
    "background": flag,
    "metadata": mapping,
    "previous_response_id": text,
    "store": flag,
    "truncation": one_of("auto", "disabled"),
    "top_logprobs": integer(0, 20),
}
_UNSUPPORTED = {
    "conversation": "this server keeps responses: go on from one with previous_response_id",
    "background": "the answer comes with the response, or as a stream",
    "prompt": "this server keeps no prompts: send instructions and input",
}
_FORMAT = one_of("text", "json_object", "json_schema")
# What is read here, or called otherwise in chat completions.
_OTHER = frozenset({*_UNSUPPORTED, "input", "instructions", "tools", "tool_choice", "text"})


async def responses(call: Call) -> Response | dict[str, Any]:
    """Answers input, whole or as a stream of events."""
    asked, body = _read(call)
    given = await with_items(call)
    earlier = await before(call, asked.get("previous_response_id"))
    messages = read_input(given, earlier)
    store = call.service.responses.max_bytes > 0 and asked.get("store", True)
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm, options = hosted.llm.llama, chat_options(call, hosted, body)
    head = _head(call.body, asked, hosted.name, store)
    forms: list[ResponseForm] = []

    def make() -> list[tuple[Request, ResponseForm]]:
        shown = messages
        if asked.get("truncation") == "auto":
            shown = fitting(llm, messages, options)
        request, chat = llm.prepare_chat_completion(shown, **options)
        forms.append(ResponseForm(chat, head))
        return [(request, forms[0])]

    async def keep_it(response: dict[str, Any]) -> None:
        if store:
            await keep(call, response, lambda: [*earlier, *as_items(given["input"])])

    generation = await start(call, hosted, make)
    if asked.get("stream"):
        return call.stream(events(generation, forms[0], keep_it), forms[0].error_event)
    (result,) = await generation.whole()
    await keep_it(result)
    return result


async def response_input_tokens(call: Call) -> dict[str, Any]:
    """How many tokens the prompt of a response has, which is not run."""
    asked, body = _read(call)
    earlier = await before(call, asked.get("previous_response_id"))
    messages = read_input(await with_items(call), earlier)
    counted = await count_input(call, asked.get("model"), messages, body)
    return {"object": "response.input_tokens", **counted}


def _read(call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a body, and its options as those of a chat completion. Raises ApiError."""
    body = call.body
    asked = read(body, _CALL)
    for name, why in _UNSUPPORTED.items():
        if body.get(name):
            raise invalid(name, f"{name} is not supported: {why}")
    made = {key: value for key, value in body.items() if key not in _OTHER}
    made |= read_tools(body)
    made["logprobs"] = _LOGPROBS in asked.get("include", ()) or bool(asked.get("top_logprobs"))
    if "max_output_tokens" in asked:
        made["max_tokens"] = asked["max_output_tokens"]
    form = read(asked.get("text", {}), {"format": mapping}, "text").get("format")
    if form is not None:
        made["response_format"] = _response_format(form)
    effort = read(asked.get("reasoning", {}), {"effort": text}, "reasoning").get("effort")
    if effort is not None:
        made["reasoning_effort"] = effort
    return asked, made


def _response_format(form: Mapping[str, Any]) -> dict[str, Any]:
    kind = needed(form, "type", _FORMAT, "text.format")
    if kind != "json_schema":
        return {"type": kind}
    schema = needed(form, "schema", mapping, "text.format")
    return {"type": kind, "json_schema": {"schema": schema}}


def _head(
    body: Mapping[str, Any], asked: Mapping[str, Any], model: str, store: bool
) -> dict[str, Any]:
    """What a response tells of its request."""
    reasoning, form = asked.get("reasoning", {}), asked.get("text", {})
    return {
        "model": model,
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "metadata": asked.get("metadata", {}),
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "store": store,
        "temperature": body.get("temperature"),
        "text": {"format": form.get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "top_logprobs": asked.get("top_logprobs", 0),
        "truncation": asked.get("truncation", "disabled"),
    }
