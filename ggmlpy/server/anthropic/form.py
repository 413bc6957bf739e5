"""An answer as Anthropic's message: whole, or as the events of a stream.

    message_start, ping
    content_block_start   thinking, text or tool_use: a new block where the kind changes
    content_block_delta   thinking_delta, text_delta, input_json_delta
    content_block_stop    behind the signature_delta of a thinking block
    message_delta         stop_reason and usage
    message_stop

Source: docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from typing import Any

from ggmlpy.engine.completion import NO_CHUNK, NO_PART, ChatForm, ChatPart
from ggmlpy.engine.generation import Piece
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.server.events import event
from ggmlpy.server.generation import Generation, OwnForm
from ggmlpy.tools import Delta

Event = dict[str, Any]
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageForm(OwnForm):
    """One message."""

    def __init__(self, chat: ChatForm, model: str, n_prompt: int, stops: Sequence[str]) -> None:
        """`stops` are the stop sequences that the request asked for."""
        self._chat = chat
        self._model = model
        self._n_prompt = n_prompt
        self._stops = stops
        self._n_blocks = 0
        self._open: tuple[str, int] | None = None  # the block that goes on: its kind, which call

    def chunks(self, pieces: Iterator[Piece]) -> Generator[Event, None, None]:
        """The events."""
        # How much of the prompt was cached is not known yet: message_delta has the final counts.
        usage = _usage(AnswerTimings(n_prompt=self._n_prompt))
        message = self._message([], None, None, usage)
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}
        for part in self._chat.parts(pieces):
            if part is NO_PART:
                yield NO_CHUNK
                continue
            for delta in part.deltas:
                yield from self._added(delta)
            if part.finish_reason is not None:
                yield from self._end(part)

    def result(self, pieces: Iterator[Piece]) -> dict[str, Any]:
        """The whole message."""
        blocks: list[dict[str, Any]] = []
        texts: list[list[str]] = []
        end: Event = {}
        for each in self.chunks(pieces):
            kind = each["type"]
            if kind == "content_block_start":
                blocks.append(each["content_block"])
                texts.append([])
            elif kind == "content_block_delta":
                texts[-1].append(next(value for k, value in each["delta"].items() if k != "type"))
            elif kind == "message_delta":
                end = each
        for block, parts in zip(blocks, texts, strict=True):
            _fill(block, "".join(parts))
        delta = end["delta"]
        return self._message(blocks, delta["stop_reason"], delta["stop_sequence"], end["usage"])

    def _message(
        self,
        content: list[dict[str, Any]],
        reason: str | None,
        sequence: str | None,
        usage: dict[str, int],
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _added(self, delta: Delta) -> Iterator[Event]:
        call = delta.call
        if call is not None:
            start: dict[str, Any] = {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": {},
            }
            yield from self._in_block(("tool_use", call.index), start)
            if call.arguments:
                yield self._more({"type": "input_json_delta", "partial_json": call.arguments})
        elif delta.reasoning:
            yield from self._in_block(
                ("thinking", 0), {"type": "thinking", "thinking": "", "signature": ""}
            )
            yield self._more({"type": "thinking_delta", "thinking": delta.reasoning})
        elif delta.content:
            yield from self._in_block(("text", 0), {"type": "text", "text": ""})
            yield self._more({"type": "text_delta", "text": delta.content})

    def _in_block(self, key: tuple[str, int], start: dict[str, Any]) -> Iterator[Event]:
        """Have this block open."""
        if key == self._open:
            return
        yield from self._close()
        self._open = key
        self._n_blocks += 1
        yield {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": start}

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open[0] == "thinking":
            yield self._more({"type": "signature_delta", "signature": ""})
        self._open = None
        yield {"type": "content_block_stop", "index": self._n_blocks - 1}

    def _more(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _end(self, part: ChatPart) -> Iterator[Event]:
        yield from self._close()
        timings = part.timings or AnswerTimings()
        reason, sequence = _REASONS.get(part.finish_reason or "", "end_turn"), None
        if reason == "end_turn" and timings.stop in self._stops:
            reason, sequence = "stop_sequence", timings.stop
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(timings)}
        yield {"type": "message_stop"}


def _fill(block: dict[str, Any], text: str) -> None:
    """Put together what the deltas of a block had."""
    if block["type"] != "tool_use":
        block[block["type"]] = text
        return
    try:
        block["input"] = json.loads(text or "{}")
    except ValueError:  # max_tokens has cut it, which stop_reason says
        block["input"] = {}


def _usage(timings: AnswerTimings) -> dict[str, int]:
    """As Anthropic counts: tokens that were cached are no input tokens."""
    return {
        "input_tokens": timings.n_prompt - timings.n_reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": timings.n_reused,
        "output_tokens": timings.n_decoded,
    }


async def events(generation: Generation) -> AsyncGenerator[bytes, None]:
    """The stream of a message."""
    async for arrived in generation.chunks():
        yield b"".join([event(each, each["type"]) for _, each in arrived])
