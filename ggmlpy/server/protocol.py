"""uvicorn's HTTP protocol with limits for what comes before a request is whole.

uvicorn waits for the end of headers for ever, and reads any amount of them: few clients that send a
byte now and then could take all connections of a process. Errors are OpenAI's objects here too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ggmlpy.server.errors import ApiError
from ggmlpy.server.events import as_json

HEADERS_S = 15.0  # in which headers must arrive
MOST_HEADER_BYTES = 2**16
ENDS_WITH_SERVER = "ggmlpy.ends_with_server"  # in the scope of an answer without an end
_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    headers_s = HEADERS_S

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._timer: asyncio.TimerHandle | None = None  # while headers are awaited
        self._n_header_bytes = 0
        self._is_in_body = False  # of a request, which may have its answer already

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()  # of the next request of a connection, or the rest of a body
        if self._timer is not None and not self._is_in_body:
            self._n_header_bytes += len(data)
        super().data_received(data)
        if self._n_header_bytes > MOST_HEADER_BYTES:
            self._refuse(431, f"the headers are larger than {MOST_HEADER_BYTES:,} bytes")

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._n_header_bytes = 0
        self._is_in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_body = False
        if self._timer is not None:  # the answer was there before the end of the body
            self._stop_timer()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: answers may finish, but for those that have no end."""
        super().shutdown()
        if self.cycle is not None and self.cycle.scope.get(ENDS_WITH_SERVER):
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that can be read")

    def _await_headers(self) -> None:
        self._n_header_bytes = 0
        self._timer = self.loop.call_later(self.headers_s, self._end_waiting)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_waiting(self) -> None:
        if self._n_header_bytes:
            self._refuse(408, f"the headers did not arrive within {self.headers_s:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timer()
        body = as_json(ApiError(status, message).as_dict())
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, _REASONS[status].encode(), len(body), body)
        )
        self.transport.close()
