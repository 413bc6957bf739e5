"""POST /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from typing import Any

from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import (
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
from ggmlpy.server.llama.prompts import read_prompt
from ggmlpy.server.openai.chat_messages import template_messages
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.tools import Conversation, template_variables, tool_use

_TOKENIZE = {"model": text, "add_special": flag, "parse_special": flag, "with_pieces": flag}
_TEMPLATE = {
    "model": text,
    "tools": tool_list,
    "tool_choice": either(text, mapping, must="a string, or an object that names a function"),
    "parallel_tool_calls": flag,
    "chat_template_kwargs": mapping,
    "add_generation_prompt": flag,
}


async def tokenize(call: Call) -> dict[str, Any]:
    """The tokens of `content`, a text or a list of texts and token ids."""
    asked = read(call.body, _TOKENIZE)
    content = call.body.get("content")
    async with call.models.using(asked.get("model")) as hosted:
        tokenizer = hosted.llm.llama.tokenizer
        if content is None or content in ("", []):
            return {"tokens": []}
        encode = read_prompt(
            "content",
            content,
            add_bos=asked.get("add_special", False),
            special=asked.get("parse_special", True),
        )

        def made() -> list[Any]:
            tokens = encode(tokenizer)
            if not asked.get("with_pieces", False):
                return tokens
            return [{"id": token, "piece": _piece(tokenizer, token)} for token in tokens]

        return {"tokens": await call.in_pool(made)}


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """A token's text, or its bytes where they are no UTF-8."""
    raw = tokenizer.token_bytes(token, special=True)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(call: Call) -> dict[str, Any]:
    """The text of `tokens`."""
    asked = read(call.body, {"model": text, "tokens": listed(integer(0))})
    async with call.models.using(asked.get("model")) as hosted:
        tokenizer = hosted.llm.llama.tokenizer
        tokens, n_vocab = asked.get("tokens", []), tokenizer.n_vocab
        if tokens and max(tokens) >= n_vocab:
            raise invalid("tokens", f"tokens has {max(tokens)}: ids are 0 to {n_vocab - 1}")
        return {"content": await call.in_pool(lambda: tokenizer.decode(tokens, special=True))}


async def apply_template(call: Call) -> dict[str, Any]:
    """The prompt that a chat completion makes of `messages`."""
    messages = needed(call.body, "messages", listed(mapping, least=1))
    asked = read(call.body, _TEMPLATE)
    async with call.models.using(asked.get("model")) as hosted:
        llm = hosted.llm.llama

        def made() -> str:
            def knows(mark: str) -> bool:
                return len(llm.tokenizer.encode_part(mark, special=True)) == 1

            use = tool_use(
                asked.get("tools"), asked.get("tool_choice"), asked.get("parallel_tool_calls")
            )
            kwargs = asked.get("chat_template_kwargs", {})
            variables = template_variables(call.settings.template_kwargs(kwargs))
            if "add_generation_prompt" in asked:
                variables["add_generation_prompt"] = asked["add_generation_prompt"]
            given = template_messages(messages, llm.chat_template.source)
            return Conversation(llm.chat_template, knows).render(given, use, variables).prompt

        return {"prompt": await call.in_pool(made)}
