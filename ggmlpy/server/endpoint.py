"""One HTTP request: its key, its body, its handler, and its answer or error.

A handler gets a `Call`. What it enters on `call.stack` is left when the answer was sent, or when
the client is gone: that ends the requests of the engine.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ggmlpy.common import log
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.errors import GgmlpyError
from ggmlpy.server.body import ClientGone, parse_body, parse_list, read_body
from ggmlpy.server.errors import ApiError, as_openai, of_error
from ggmlpy.server.events import EventStream, as_json, as_json_in_parts, event, until_gone
from ggmlpy.server.fields import integer, read
from ggmlpy.server.hosted import Models, in_pool
from ggmlpy.server.logs import Answered, id_headers, log_request, raised, request_id
from ggmlpy.server.service import Service
from ggmlpy.server.settings import Settings

Result = TypeVar("Result")
ErrorForm = Callable[[ApiError, str], dict[str, Any]]  # of an error and its request's id
_LARGE = 2**16  # bytes: of a larger body the JSON is parsed in a thread


@dataclass(eq=False, slots=True)
class Call:
    """A request that is being answered."""

    service: Service
    request: Request
    id: str
    client: str  # whose turn it takes: its API key, or its address
    error_form: ErrorForm
    ends_s: float  # when its time is over, by the loop's clock
    body: dict[str, Any] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    answers: list[Answered] = field(default_factory=list)  # that are complete
    has_large_answer: bool = False  # whose JSON a thread writes

    @property
    def settings(self) -> Settings:
        return self.service.settings

    @property
    def models(self) -> Models:
        return self.service.models

    def stream(
        self,
        events: AsyncGenerator[bytes, None],
        error_event: Callable[[ApiError], bytes] | None = None,
    ) -> EventStream:
        """The response that writes events. `error_event` makes the one of an error, by default of
        the API's error object."""
        settings = self.settings
        ping_s = read(self.body, {"sse_ping_interval": integer(-1)}).get("sse_ping_interval")
        made = error_event or self._error_event
        return EventStream(
            events,
            ping_s=settings.ping_s if ping_s is None else max(0, ping_s),
            send_timeout_s=settings.send_timeout_s,
            ends_s=self.ends_s,
            late=self.too_late(),
            failed=lambda error: made(failure(error, self.id, self.body, settings)),
        )

    def _error_event(self, error: ApiError) -> bytes:
        made = self.error_form(error, self.id)
        return event(made, made.get("type"))

    def too_late(self) -> ApiError:
        """The error of an answer that takes too long."""
        limit = self.settings.timeout_s
        return ApiError(504, f"the answer was not complete after {limit:g} s")

    def note(self, model: str, timings: AnswerTimings, spent_s: float, reason: str) -> None:
        """An answer has ended, which took `spent_s` with its time in the queue."""
        self.answers.append(Answered(model, timings, reason))
        if self.service.metrics is not None:
            self.service.metrics.add(model, timings, spent_s, reason)

    async def in_pool(self, function: Callable[[], Result]) -> Result:
        """The result of a function that takes a while."""
        return await in_pool(self.service.pool, function)


def failure(error: Exception, id: str, fields: Collection[str], settings: Settings) -> ApiError:
    """The error of the request `id`, whose body has these `fields`. What it cannot be blamed for is
    logged, without the message of an error that is not ours: it may show what was asked."""
    made = of_error(error, fields)
    if made.status >= 500 and not isinstance(error, ApiError | GgmlpyError):
        shown = error if settings.log_prompts else None
        log.logger.error("request %s failed: %s", id, raised(error), exc_info=shown)
    elif made.status == 500:
        log.logger.error("request %s failed: %s", id, error)
    return made


Handler = Callable[[Call], Coroutine[Any, Any, Response | dict[str, Any] | list[Any]]]


class Endpoint:
    """An ASGI application for one path and verb."""

    def __init__(
        self,
        handler: Handler,
        *,
        has_body: bool = True,
        is_public: bool = False,
        error_form: ErrorForm = as_openai,
        list_name: str | None = None,
        may_be_empty: bool = False,
    ) -> None:
        """`is_public`: no API key is needed. `list_name`: the body is a list, and becomes the field
        of this name. `may_be_empty`: without a body there are no fields."""
        self._handler = handler
        self._has_body = has_body
        self._is_public = is_public
        self._error_form = error_form
        self._list_name = list_name
        self._may_be_empty = may_be_empty

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["app"].state.service
        request = Request(scope, receive)
        id, started = request_id(request.headers.get("x-request-id", "")), perf_counter()
        call: Call | None = None
        status = 499  # nginx' status of a request whose client is gone
        try:
            client = self._client(request, service.settings)
            ends_s = asyncio.get_running_loop().time() + service.settings.timeout_s
            call = Call(service, request, id, client, self._error_form, ends_s)
            response = await self._respond(call, receive)
            response.headers.update(id_headers(id))
            # What a stream runs is in the stack too, which is left when it ends.
            await response(scope, receive, send)
            if not (isinstance(response, EventStream) and response.is_cut):
                status = response.status_code
        except ClientGone:  # nobody would read an answer
            return
        except Exception as error:
            fields = () if call is None else call.body
            response = self._refuse(failure(error, id, fields, service.settings), id)
            response.headers.update(id_headers(id))
            status = response.status_code
            await response(scope, receive, send)
        finally:
            if call is not None:
                await call.stack.aclose()
            answers, body = ([], {}) if call is None else (call.answers, call.body)
            about = id, request.method, request.url.path, status, perf_counter() - started
            log_request(*about, answers, body if service.settings.log_prompts else None)
            if service.traces is not None:
                service.traces.record(*about, request.headers, answers, body)

    async def _respond(self, call: Call, receive: Receive) -> Response:
        if self._has_body:
            raw = await read_body(call.request.scope, receive, call.settings)
            if len(raw) > _LARGE:
                call.body = await call.in_pool(lambda: self._parse(raw))
            else:
                call.body = self._parse(raw)
        made = await unless_gone(receive, self._timed(call))
        if isinstance(made, Response):
            return made
        if call.has_large_answer:
            written = await call.in_pool(lambda: as_json_in_parts(made))
        else:
            written = as_json(made)
        return Response(written, media_type="application/json")

    def _parse(self, raw: bytes) -> dict[str, Any]:
        if self._may_be_empty and not raw.strip():
            return {}
        name = self._list_name
        return parse_body(raw) if name is None else {name: parse_list(raw)}

    async def _timed(self, call: Call) -> Response | dict[str, Any] | list[Any]:
        try:
            async with asyncio.timeout_at(call.ends_s):
                return await self._handler(call)
        except TimeoutError:
            raise call.too_late() from None

    def _client(self, request: Request, settings: Settings) -> str:
        """Whose request it is. Raises ApiError without a key, where one is needed."""
        address = request.client.host if request.client else ""
        given = request.headers.get("authorization", "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer":
            key = request.headers.get("x-api-key", "")
        key = key.strip()
        if not settings.api_keys:
            return key or address
        sent = key.encode("latin-1", "replace")  # which is how headers were decoded
        if any(hmac.compare_digest(sent, each.encode()) for each in settings.api_keys):
            return key
        if self._is_public:
            return address
        what = "is none of this server's" if key else "is missing: send Authorization: Bearer KEY"
        raise ApiError(
            401,
            f"the API key {what}",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _refuse(self, error: ApiError, id: str) -> Response:
        return Response(
            as_json(self._error_form(error, id)),
            status_code=error.status,
            headers=error.headers,
            media_type="application/json",
        )


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled if the client closes the connection: ClientGone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait((task, gone))
