"""Runs files of requests in the form of OpenAI's Batch API, without HTTP.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}     a line in
    {"id": …, "custom_id": "a", "response": {"status_code": 200, "request_id": …, "body": {…}},
     "error": null}                                                                      a line out

Each request goes through the application as one over HTTP does, so that all paths of the server can
be asked. Lines are written as answers come, in any order. A file that was begun is gone on with:
what it has whole lines for is not run again. Source: platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from starlette.applications import Starlette

from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError
from ggmlpy.server.body import parse_body
from ggmlpy.server.errors import ApiError
from ggmlpy.server.events import as_json

_METHODS = ("POST", "GET")
_ID = "batch_req_"
_BEGINNING = f'{{"id": "{_ID}'.encode()  # of each line of answers


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a file."""

    number: int  # in the file, from 1 on
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


def read_requests(path: Path) -> Iterator[Line]:
    """The requests of a file. Raises FileError, which names the line, for what is none, and for a
    custom_id that another line has."""
    seen: dict[str, int] = {}
    with _opened(path) as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            where = f"{printable(path.name)}, line {number}"
            try:
                line = _line_of(number, parse_body(raw, "it"))
            except ApiError as error:
                raise FileError(f"{where}: {error.message}") from None
            first = seen.setdefault(line.custom_id, number)
            if first != number:
                raise FileError(
                    f'{where}: custom_id "{printable(line.custom_id)}" is that of line {first}: it'
                    " must be another one for each request"
                )
            yield line


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise FileError(f"{printable(str(path))}: {error.strerror}") from None


def _line_of(number: int, data: dict[str, Any]) -> Line:
    """Raises ApiError."""
    for name, kind, must in (
        ("custom_id", str, "a string"),
        ("url", str, 'a path such as "/v1/chat/completions"'),
        ("body", dict, "an object"),
    ):
        if not isinstance(data.get(name), kind):
            raise ApiError(400, f"{name} is {json.dumps(data.get(name))[:60]}: it must be {must}")
    method = data.get("method", "POST")
    if method not in _METHODS:
        raise ApiError(400, f"method is {json.dumps(method)[:60]}: it must be POST or GET")
    if data["body"].get("stream"):
        raise ApiError(400, "body.stream is true: answers of a batch are not streamed")
    return Line(number, data["custom_id"], method, data["url"], data["body"])


def read_done(path: Path) -> set[str]:
    """The custom_ids that a file of answers has. A last line that was cut is removed from it.

    Raises FileError for a file of something else, which is left as it is.
    """
    if not path.is_file():  # none yet, or a pipe
        return set()
    found = set()
    end = 0
    with _opened(path) as file:
        for number, raw in enumerate(file, start=1):
            is_cut = not raw.endswith(b"\n")  # while it was written
            custom_id = _answered(raw)
            if raw[: len(_BEGINNING)] != _BEGINNING[: len(raw)] if is_cut else custom_id is None:
                raise FileError(
                    f"{printable(path.name)}, line {number}: not an answer of a batch; give the"
                    " name of another file"
                )
            if is_cut:
                break
            found.add(str(custom_id))
            end += len(raw)
    if end < path.stat().st_size:
        os.truncate(path, end)
    return found


def _answered(raw: bytes) -> str | None:
    """The custom_id of a line of answers; None for any other line."""
    try:
        data = json.loads(raw)
        custom_id, _ = data["custom_id"], data["response"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return custom_id if isinstance(custom_id, str) else None


async def run_batch(
    app: Starlette,
    lines: Iterator[Line],
    write: Callable[[dict[str, Any]], None],
    *,
    at_once: int,
) -> None:
    """Run requests, up to `at_once` together, and let `write` have their answers as they come.

    Raises what `write` raises.
    """

    async def work() -> None:
        for line in lines:  # the workers share the iterator
            write(await _answer(app, line))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _answer(app: Starlette, line: Line) -> dict[str, Any]:
    """The line of an answer. Requests that are refused have one too, with the error."""
    status, body = await ask(app, line.method, line.url, line.body)
    return {
        "id": f"{_ID}{uuid.uuid4().hex}",
        "custom_id": line.custom_id,
        "response": {
            "status_code": status,
            "request_id": f"req_{uuid.uuid4().hex}",
            "body": _content(body),
        },
        "error": None,
    }


def _content(body: bytes) -> Any:
    """JSON, or else the text, as that of /metrics."""
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


async def ask(app: Starlette, method: str, path: str, body: Any) -> tuple[int, bytes]:
    """The status and the body of an application's answer to one request. Streams, such as that of
    /engine, may have no end: they are left at once, and answered with an error."""
    raw = json.dumps(body).encode() if method == "POST" else b""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"batch"), (b"content-length", str(len(raw)).encode())],
        "client": None,
        "server": None,
        "state": {},
    }
    is_sent = is_stream = False
    gone = asyncio.Event()  # set when the stream is left
    status, parts = 500, []

    async def receive() -> dict[str, Any]:
        nonlocal is_sent
        if is_sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        is_sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, is_stream
        if message["type"] == "http.response.start":
            status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            if kind.startswith(b"text/event-stream"):
                is_stream = True
                gone.set()
        elif not is_stream:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    if is_stream:
        refusal = ApiError(400, f"{path:.200} is a stream: answers of a batch are not streamed")
        return refusal.status, as_json(refusal.as_dict())
    return status, b"".join(parts)
