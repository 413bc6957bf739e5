"""The forms in which llama-server takes prompts.

"text"   [12, 34]   [12, "text", 56]   {"prompt_string": "text"}        one prompt
["text", "text"]    [[12, "text"], "text", {"prompt_string": "text"}]   several
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggmlpy.errors import BadBatch
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import text, wrong
from ggmlpy.text.tokenizer import Tokenizer

_MOST_PROMPTS = 2048
_MUST = "a string, token ids, a list of both, or a list of prompts"
Encode = Callable[[Tokenizer], list[int]]  # made in the event loop, called in a thread


def read_prompts(name: str, value: Any) -> list[Encode]:
    """The prompts of a field. Raises ApiError."""
    if isinstance(value, list) and _are_several(value):
        if len(value) > _MOST_PROMPTS:
            raise invalid(name, f"{name} has {len(value)} prompts: there may be {_MOST_PROMPTS}")
        return [read_prompt(f"{name}[{i}]", each) for i, each in enumerate(value)]
    return [read_prompt(name, value)]


def _are_several(items: list[Any]) -> bool:
    if any(isinstance(each, list | dict) for each in items):
        return True
    return bool(items) and all(isinstance(each, str) for each in items)


def read_prompt(name: str, value: Any, *, add_bos: bool = True, special: bool = True) -> Encode:
    """What makes the tokens of one prompt, which begin with BOS if it begins with text and
    `add_bos`. Raises ApiError."""
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise invalid(name, f"{name} has multimodal_data: this server takes text only")
        value = value.get("prompt_string")
        name = f"{name}.prompt_string"
    if not isinstance(value, str | list):
        raise wrong(name, value, _MUST)
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, str):
            text(name, part)
        elif not isinstance(part, int) or isinstance(part, bool):
            raise wrong(name, value, _MUST)

    def encode(tokenizer: Tokenizer) -> list[int]:
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                tokens += tokenizer.encode(part, add_bos=add_bos and not i, special=special)
            else:
                tokens.append(part)
        if not tokens:
            raise BadBatch(f"{name} is empty: it must have at least one token")
        return tokens

    return encode
