"""What a message has beside text: reasoning and calls of tools, as they come and as a whole."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The beginning of a call, which has a name, or more of its arguments, which are JSON."""

    index: int  # of the call in its message
    arguments: str = ""
    name: str | None = None
    id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As in `delta.tool_calls`."""
        if self.name is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Delta:
    """More of one part of a message."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None

    def as_dict(self) -> dict[str, Any]:
        """As `delta` of a chunk."""
        if self.call is not None:
            return {"tool_calls": [self.call.as_dict()]}
        if self.reasoning:
            return {"reasoning_content": self.reasoning}
        return {"content": self.content}


@dataclass(slots=True)
class Call:
    """A whole call."""

    name: str
    id: str
    arguments: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As in `message.tool_calls`."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class Message:
    """The deltas of an answer, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Message:
        message = cls()
        for delta in deltas:
            message.content += delta.content
            message.reasoning += delta.reasoning
            call = delta.call
            if call is None:
                continue
            if call.name is not None:
                message.calls.append(Call(call.name, call.id or ""))
            message.calls[-1].arguments += call.arguments
        return message

    def as_dict(self) -> dict[str, Any]:
        """As `message` of a chat completion: without text its content is None, if it has calls."""
        made: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            made["content"] = self.content or None
            made["tool_calls"] = [call.as_dict() for call in self.calls]
        return made


def new_id(n: int = 24, prefix: str = "call_") -> str:
    """An id for a call to which the model gave none."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(n))
