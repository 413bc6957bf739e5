"""An answer as a response of the Responses API: whole, or as the events of a stream.

    response.created, response.in_progress
    response.output_item.added       a reasoning, message or function_call item
      response.content_part.added    of the first two
      response.reasoning_text.delta, response.output_text.delta,
      response.function_call_arguments.delta, and a .done of each
      response.content_part.done
    response.output_item.done
    response.completed, response.incomplete

Each has a sequence_number. Source: platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any

from ggmlpy.engine.completion import NO_CHUNK, NO_PART, ChatForm, ChatPart
from ggmlpy.engine.generation import Piece
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.server.errors import ApiError
from ggmlpy.server.events import event
from ggmlpy.server.generation import Generation, OwnForm
from ggmlpy.tools import Delta

Event = dict[str, Any]
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_TEXTS = {"reasoning": "reasoning_text", "message": "output_text"}


@dataclass(eq=False, slots=True)
class _Item:
    """An item of the output that goes on."""

    kind: str
    i_call: int  # of a function_call, which of them
    index: int  # in the output
    head: dict[str, Any]  # its fields beside text and status
    parts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)  # of a message's tokens

    def part(self, text: str) -> dict[str, Any]:
        """Its content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = list(self.logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def as_dict(self, status: str) -> dict[str, Any]:
        made = {**self.head, "status": status}
        text = "".join(self.parts)
        if self.kind == "function_call":
            return made | {"arguments": text}
        return made | {"content": [self.part(text)] if text else []}


class ResponseForm(OwnForm):
    """One response."""

    def __init__(self, chat: ChatForm, head: Mapping[str, Any]) -> None:
        """`head` has what a response tells of its request."""
        self._chat = chat
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            **head,
        }
        self._n_events = 0
        self._n_parts = 0  # tokens until now
        self._n_reasoning = 0  # of those, until the reasoning ended
        self._output: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not come yet
        self.final: dict[str, Any] | None = None  # the whole response, once it is complete

    def chunks(self, pieces: Iterator[Piece]) -> Generator[Event, None, None]:
        """The events."""
        for each in self._events(pieces):
            if each is not NO_CHUNK:
                each["sequence_number"] = self._n_events
                self._n_events += 1
            yield each

    def result(self, pieces: Iterator[Piece]) -> dict[str, Any]:
        """The whole response."""
        for _ in self._events(pieces):
            pass
        assert self.final is not None
        return self.final

    def error_event(self, error: ApiError) -> bytes:
        """The event of an error, behind which nothing comes."""
        made = {
            "type": "error",
            "code": error.code or error.type,
            "message": error.message,
            "param": error.param,
            "sequence_number": self._n_events,
        }
        return event(made, "error")

    def _events(self, pieces: Iterator[Piece]) -> Generator[Event, None, None]:
        begun = self._response("in_progress")
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for part in self._chat.parts(pieces):
            if part is NO_PART:
                yield NO_CHUNK
                continue
            self._n_parts += part.progress is None
            self._logprobs += [self._chat.scored(each) for each in part.logprobs]
            for delta in part.deltas:
                yield from self._added(delta)
            if part.finish_reason is not None:
                yield from self._end(part)

    def _added(self, delta: Delta) -> Iterator[Event]:
        call = delta.call
        if call is not None or delta.reasoning:
            self._logprobs = []
        if call is not None:
            head = {"type": "function_call", "call_id": call.id, "name": call.name}
            yield from self._in_item("function_call", call.index, head)
            if call.arguments:
                yield self._more("response.function_call_arguments.delta", call.arguments)
        elif delta.reasoning:
            self._n_reasoning = self._n_parts
            yield from self._in_item("reasoning", 0, {"type": "reasoning", "summary": []})
            yield self._more("response.reasoning_text.delta", delta.reasoning)
        elif delta.content:
            yield from self._in_item("message", 0, {"type": "message", "role": "assistant"})
            yield self._more("response.output_text.delta", delta.content, self._logprobs)
            self._logprobs = []

    def _in_item(self, kind: str, i_call: int, head: dict[str, Any]) -> Iterator[Event]:
        """Have this item open."""
        item = self._open
        if item is not None and (item.kind, item.i_call) == (kind, i_call):
            return
        yield from self._close("completed")
        head = {"id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}", **head}
        item = self._open = _Item(kind, i_call, len(self._output), head)
        shown = item.as_dict("in_progress")
        yield {"type": "response.output_item.added", "output_index": item.index, "item": shown}
        if kind != "function_call":
            part = item.part("")
            yield self._of(item, "response.content_part.added", content_index=0, part=part)

    def _more(self, name: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Event:
        item = self._open
        assert item is not None
        item.parts.append(text)
        item.logprobs += logprobs
        return self._of(item, name, **_place(item, logprobs), delta=text)

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        text = "".join(item.parts)
        if item.kind == "function_call":
            name = "response.function_call_arguments.done"
            yield self._of(item, name, name=item.head["name"], arguments=text)
        else:
            name = f"response.{_TEXTS[item.kind]}.done"
            yield self._of(item, name, **_place(item, item.logprobs), text=text)
            part = item.part(text)
            yield self._of(item, "response.content_part.done", content_index=0, part=part)
        made = item.as_dict(status)
        self._output.append(made)
        yield {"type": "response.output_item.done", "output_index": item.index, "item": made}

    def _of(self, item: _Item, kind: str, **more: Any) -> Event:
        return {"type": kind, "item_id": item.head["id"], "output_index": item.index, **more}

    def _end(self, part: ChatPart) -> Iterator[Event]:
        status = "incomplete" if part.finish_reason == "length" else "completed"
        yield from self._close(status)
        usage = self._usage(part.timings or AnswerTimings())
        self.final = self._response(status, usage)
        yield {"type": f"response.{status}", "response": self.final}

    def _response(self, status: str, usage: dict[str, Any] | None = None) -> dict[str, Any]:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": why,
            "output": list(self._output),
            "usage": usage,
        }

    def _usage(self, timings: AnswerTimings) -> dict[str, Any]:
        return {
            "input_tokens": timings.n_prompt,
            "input_tokens_details": {"cached_tokens": timings.n_reused, "cache_write_tokens": 0},
            "output_tokens": timings.n_decoded,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning},
            "total_tokens": timings.n_prompt + timings.n_decoded,
        }


def _place(item: _Item, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where in the item a text is, of a message with those of its tokens."""
    if item.kind == "function_call":
        return {}
    return {"content_index": 0} | ({"logprobs": logprobs} if item.kind == "message" else {})


async def events(
    generation: Generation,
    form: ResponseForm,
    keep: Callable[[dict[str, Any]], Awaitable[None]],
) -> AsyncGenerator[bytes, None]:
    """The stream of a response, which is given to `keep` before its last event."""
    async for arrived in generation.chunks():
        if form.final is not None:
            await keep(form.final)
        yield b"".join([event(each, each["type"]) for _, each in arrived])
