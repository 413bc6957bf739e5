"""Messages of chat completions as chat templates take them.

{"role": "developer", "content": "Be kind."}                 -> "role": "system"
{"role": "assistant", "content": null, "refusal": "No."}     -> "content": "No."
{"type": "refusal", "refusal": "No."}                        -> {"type": "text", "text": "No."}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import needed, text

Message = dict[str, Any]
_DEVELOPER = "developer"


def template_messages(messages: Sequence[Message], template: str) -> list[Message]:
    """The messages for a template, given its source: one that knows developers keeps them. Raises
    ApiError for content that is no text."""
    knows_developers = _DEVELOPER in template
    made = []
    for i, message in enumerate(messages):
        shown, content = dict(message), message.get("content")
        if message.get("role") == _DEVELOPER and not knows_developers:
            shown["role"] = "system"
        refusal = message.get("refusal")
        if content is None and refusal is not None:
            shown["content"] = text(f"messages[{i}].refusal", refusal)
        elif isinstance(content, list):
            shown["content"] = [
                _part(f"messages[{i}].content[{j}]", part) for j, part in enumerate(content)
            ]
        made.append(shown)
    return made


def _part(at: str, part: Any) -> Any:
    """A part of text. Others than objects are left to what checks messages."""
    kind = part.get("type") if isinstance(part, Mapping) else "text"
    if kind == "refusal":
        return {"type": "text", "text": needed(part, "refusal", text, at)}
    if kind != "text":
        raise invalid(
            f"{at}.type",
            f"{at} is of type {json.dumps(kind)[:40]}: this model reads text only, send parts of"
            ' type "text"',
        )
    return part
