"""What clients talk to: reads requests, sends them to a replica, and passes the answers on."""

from __future__ import annotations

import asyncio
from typing import Any

from ray import serve
from ray.serve.exceptions import RequestCancelledError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ggmlpy.common import log
from ggmlpy.server.body import ClientGone, parse_body, read_body
from ggmlpy.server.cluster.prefixes import prompt_of
from ggmlpy.server.cluster.replica import unavailable
from ggmlpy.server.errors import ApiError
from ggmlpy.server.events import as_json, until_gone
from ggmlpy.server.settings import Settings

APP = "ggmlpy"  # names in Ray Serve
REPLICAS = "replicas"
_PASSED = ("http_version", "method", "scheme", "path", "raw_path", "query_string", "client")


def make_front(settings: Settings) -> ASGIApp:
    """The ASGI application of a front."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            try:
                await _pass_on(scope, receive, send, settings)
            except ApiError as error:
                await _refuse(error, scope, receive, send)
            except ClientGone:
                return

    return front


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    response = Response(
        as_json(error.as_dict()),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )
    await response(scope, receive, send)


async def _pass_on(scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
    body = b""
    prefix = ""
    if scope["method"] == "POST":
        body = await read_body(scope, receive, settings)
        try:
            prefix = prompt_of(parse_body(body))
        except ApiError:  # the replica says what is wrong
            prefix = ""
    sent = {name: scope.get(name) for name in _PASSED}
    sent |= {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "root_path": ""}
    sent["headers"] = [tuple(each) for each in scope["headers"]]
    handle = serve.get_deployment_handle(REPLICAS, app_name=APP)
    answer = handle.options(method_name="ask", stream=True).remote(prefix, sent, body)
    writer = asyncio.ensure_future(_write(answer, send))
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((writer, gone), return_when=asyncio.FIRST_COMPLETED)
        if writer.done():
            writer.result()
    finally:
        if not writer.done():
            answer.cancel()
        for task in (writer, gone):
            task.cancel()
        await asyncio.wait((writer, gone))


async def _write(answer: Any, send: Send) -> None:
    has_begun = False
    try:
        async for messages in answer:
            for message in messages:
                has_begun = True
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    return  # the connection may end before the generator does
    except RequestCancelledError:  # the client is gone
        return
    except Exception as error:  # of Ray, or of a replica that is gone
        log.logger.error("a replica failed: %s", error)
        if has_begun:
            raise
        raise unavailable(type(error).__name__) from None
