"""Server-sent events: a response that is written as it is made.

Starlette's StreamingResponse notices that a client is gone when it writes to it next, which is
after the whole prompt; this one at once. A silent stream sends comments, and a client that does not
read is let go. Source of the format: html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_LEAST_LOGPROB = -9999.0  # JSON has no -inf
_FEW = 32  # items of an object or a list, which are written without a pause
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def as_json(data: Any) -> bytes:
    """JSON in UTF-8. Numbers that JSON does not have are log-probabilities of -inf, and half of a
    surrogate pair, which an error may show, becomes "?"."""
    try:
        text = _encode(data)
    except ValueError:
        text = _encode(_finite(data))
    return text.encode(errors="replace")


def as_json_in_parts(data: Any) -> bytes:
    """The same, for a thread: others run between the parts, each of which is written without a
    pause."""
    return b"".join(_parts(data))


def _parts(data: Any) -> Iterator[bytes]:
    if not isinstance(data, dict | list) or _is_small(data):
        yield as_json(data)
    elif isinstance(data, dict):
        for i, (name, value) in enumerate(data.items()):
            yield b"%s%s:" % (b"," if i else b"{", as_json(name))
            yield from _parts(value)
        yield b"}"
    else:
        for i, value in enumerate(data):
            yield b"," if i else b"["
            yield from _parts(value)
        yield b"]"


def _is_small(data: dict[str, Any] | list[Any]) -> bool:
    """Whether it has few items, which have few."""
    items = data.values() if isinstance(data, dict) else data
    sizes = (len(each) for each in items if isinstance(each, dict | list))
    return len(data) <= _FEW and max(sizes, default=0) <= _FEW


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return _LEAST_LOGPROB
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list) else data


def event(data: Any, name: str | None = None) -> bytes:
    """One event, with data as JSON."""
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return head + b"data: " + as_json(data) + b"\n\n"


class EventStream(Response):
    """Writes events as a generator gives them, and closes it at the end or when the client goes."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        ping_s: float,
        send_timeout_s: float,
        ends_s: float,
        late: Exception,
        failed: Callable[[Exception], bytes],
    ) -> None:
        """`ping_s`: seconds of silence before a comment; 0: none. An error of `events` becomes the
        last event, which `failed` makes of it, and so does `late` at `ends_s`, by the loop's
        clock."""
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events
        self._ping_s = ping_s or math.inf
        self._send_timeout_s = send_timeout_s
        self._ends_s = ends_s
        self._late = late
        self._failed = failed
        self._sending_since: float | None = None
        self._written = 0.0  # when
        self.is_cut = False  # whether its client was gone, or did not read, before its end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._written = loop.time()
        writer = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            while not writer.done() and not gone.done():
                await asyncio.wait(
                    (writer, gone),
                    timeout=self._until_due(loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if writer.done() or gone.done():
                    self.is_cut = not writer.done()
                    break
                now, since = loop.time(), self._sending_since
                if now >= self._ends_s and since is None:
                    writer.cancel()
                    await asyncio.wait((writer,))
                    await self._send(send, self._failed(self._late))
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    break
                if since is not None and now - since >= self._send_timeout_s:
                    self.is_cut = True  # the client does not read
                    break
                if since is None and now - self._written >= self._ping_s:
                    await self._send(send, _PING)
            if writer.done() and not writer.cancelled():
                writer.result()
        finally:
            for task in (writer, gone):
                task.cancel()
            await asyncio.wait((writer, gone))
            await self._events.aclose()

    def _until_due(self, now: float) -> float:
        """Seconds until something may be due: a comment, or the end of a client's time."""
        if self._sending_since is not None:
            return max(0.0, self._sending_since + self._send_timeout_s - now)
        due = min(self._written + self._ping_s, now + self._send_timeout_s, self._ends_s)
        return max(0.0, due - now)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in self._events:
                await self._send(send, part)
        except Exception as error:  # the status was sent: the stream ends with the error
            await self._send(send, self._failed(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, part: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._sending_since = self._written = loop.time()
        with suppress(OSError):  # the client is gone, which `until_gone` tells too
            await send({"type": "http.response.body", "body": part, "more_body": True})
        self._sending_since = None


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection, after its body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
