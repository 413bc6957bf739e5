"""The chat format "chatml-function-calling": tools for any model that writes ChatML.

With a `tool_choice` that names a tool the answer is the arguments of a call of it; with "auto" the
model chooses between a message and calls of tools, each of which begins `functions.NAME:`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggmlpy.compat.llama_cpp.chat_results import as_call, as_chat, call_id, chat_logprobs
from ggmlpy.compat.llama_cpp.llama_grammar import LlamaGrammar
from ggmlpy.compat.llama_cpp.tools import as_tools, grammar_for, grammar_of_arguments, named_tool

if TYPE_CHECKING:
    from ggmlpy.compat.llama_cpp.llama import Llama

_END = "<|im_end|>"
_MOST_CALLS = 16  # of one answer

# What the system message says of the tools; models were given these words by llama-cpp-python.
_TOOLS = """

You have access to the following functions:
{tools}

You can respond to users messages with either a single message or one or more function calls.

To respond with a message begin the message with 'message:', use the following format:

message:
<message>

To respond with one or more function calls begin the message with 'functions.<function_name>:', use\
 the following format:

functions.<function_name>:
{{ "arg1": "value1", "arg2": "value2" }}
functions.<function_name>:
{{ "arg1": "value1", "arg2": "value2" }}"""


def chatml_function_calling(
    *,
    llama: Llama,
    messages: Sequence[Mapping[str, Any]],
    functions: list[Any] | None = None,
    function_call: Any = None,
    tools: list[Any] | None = None,
    tool_choice: Any = None,
    stream: bool = False,
    stop: str | list[str] | None = None,
    response_format: Mapping[str, Any] | None = None,
    grammar: LlamaGrammar | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    **options: Any,
) -> Any:
    """The answer to messages, with calls of tools. Raises ValueError for a choice of no tool, and
    for a stream of an automatic choice."""
    tools, tool_choice = as_tools(functions, function_call, tools, tool_choice)
    stops = [*([stop] if isinstance(stop, str) else stop or []), _END]
    options |= {"stop": stops}
    top = top_logprobs if logprobs else None
    if tool_choice in (None, "none") or not tools:
        prompt = _prompt(messages, None)
        grammar = grammar if response_format is None else grammar_for(response_format) or grammar
        completion = llama.create_completion(
            prompt=prompt, stream=stream, grammar=grammar, logprobs=top, **options
        )
        return as_chat(completion, stream=stream)
    prompt = _prompt(messages, tools)
    tool = named_tool(tools, tool_choice)
    if tool is not None:
        name = tool["function"]["name"]
        completion = llama.create_completion(
            prompt=f"{prompt}functions.{name}:\n",
            stream=stream,
            grammar=grammar_of_arguments(tool),
            **options,
        )
        return as_call(name, completion, stream=stream)
    if tool_choice != "auto":
        raise ValueError(
            f'tool_choice is {tool_choice!r}: it must be "none", "auto" or one that names a tool'
        )

    def complete(prompt: str, **changed: Any) -> Any:
        return llama.create_completion(prompt=prompt, **{**options, **changed})

    first = complete(prompt, temperature=0, stop=[":"], max_tokens=None, grammar=_begin(tools))
    if _text(first).startswith("message"):
        completion = complete(
            f"{prompt}message:\n", stream=stream, stop=[_END], max_tokens=None, logprobs=top
        )
        return as_chat(completion, stream=stream)
    if stream:
        raise ValueError("Automatic streaming tool choice is not supported")
    return _calls(llama, prompt, tools, first, complete)


def _calls(
    llama: Llama,
    prompt: str,
    tools: list[Any],
    first: dict[str, Any],
    complete: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    """The calls that the model makes, one after the other, until it ends them.

    They also end with 16, before one that was made already, and where the context is full: then
    "finish_reason" is "length", and a call that is cut is left out unless it is the only one.
    """
    begins = {f"functions.{tool['function']['name']}": tool for tool in tools}
    calls: list[tuple[str, dict[str, Any]]] = []
    reason = "tool_calls"
    tool = begins.get(_text(first))
    while tool is not None and len(calls) < _MOST_CALLS:
        name = tool["function"]["name"]
        prompt += f"functions.{name}:\n"
        if calls and not _fits(llama, prompt):
            reason = "length"
            break
        call = complete(prompt, max_tokens=None, grammar=grammar_of_arguments(tool))
        is_cut = _is_cut(call)
        if any((name, _text(call)) == (other, _text(made)) for other, made in calls):
            break
        if not (is_cut and calls):
            calls.append((name, call))
        prompt += _text(call) + "\n"
        if is_cut or not _fits(llama, prompt):
            reason = "length"
            break
        after = complete(prompt, temperature=0, stop=[":"], max_tokens=None, grammar=_go_on(tools))
        if _is_cut(after):
            reason = "length"
            break
        tool = begins.get(_text(after))
    entries = [
        {
            "id": call_id(call, name, i),
            "type": "function",
            "function": {"name": name, "arguments": _text(call)},
        }
        for i, (name, call) in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": entries}
    if len(entries) == 1:
        message["function_call"] = entries[0]["function"]
    counts = ("completion_tokens", "prompt_tokens", "total_tokens")
    return {
        "id": "chat" + first["id"],
        "object": "chat.completion",
        "created": first["created"],
        "model": first["model"],
        "choices": [
            {
                "finish_reason": reason,
                "index": 0,
                "logprobs": chat_logprobs(first["choices"][0]["logprobs"]),
                "message": message,
            }
        ],
        "usage": {count: sum(call["usage"][count] for _, call in calls) for count in counts},
    }


def _fits(llama: Llama, prompt: str) -> bool:
    """Whether the context has room behind a prompt."""
    return len(llama._prompt_tokens(prompt, None)) < llama.n_ctx()


def _text(completion: dict[str, Any]) -> str:
    text: str = completion["choices"][0]["text"]
    return text


def _is_cut(completion: dict[str, Any]) -> bool:
    is_cut: bool = completion["choices"][0]["finish_reason"] == "length"
    return is_cut


def _begin(tools: list[Any]) -> LlamaGrammar:
    return _choice(tools, "message:")


def _go_on(tools: list[Any]) -> LlamaGrammar:
    return _choice(tools, _END)


def _choice(tools: list[Any], other: str) -> LlamaGrammar:
    """The beginning of a call of any of the tools, or something else."""
    calls = " | ".join(json.dumps(f"functions.{tool['function']['name']}:") for tool in tools)
    return LlamaGrammar.from_string(
        f"root ::= functions | {json.dumps(other)}\nfunctions ::= {calls}"
    )


def _prompt(messages: Sequence[Mapping[str, Any]], tools: list[Any] | None) -> str:
    """The messages in ChatML, ending with the beginning of the answer."""
    text = ""
    for message in messages:
        role, content = message["role"], message.get("content")
        text += f"<|im_start|>{role}\n"
        if role == "system":
            text += f"{content}{_about(tools) if tools else ''}{_END}\n"
        elif role == "user":
            text += f"{content}{_END}\n"
        elif role == "assistant":
            if content:
                text += f"{'message:' + chr(10) if tools else ''}{content}{_END}\n"
            if "tool_calls" in message:
                for call in message["tool_calls"]:
                    function = call["function"]
                    text += f"functions.{function['name']}:\n{function['arguments']}"
                text += f"{_END}\n"
    return f"{text}<|im_start|>assistant\n"


def _about(tools: list[Any]) -> str:
    entries = [
        f"\nfunctions.{tool['function']['name']}:\n"
        f"{json.dumps(tool['function'].get('parameters', {}), sort_keys=True)}\n"
        for tool in tools
    ]
    return _TOOLS.format(tools="".join(entries))
