"""Clients of an HTTP server that stream completions, each its requests one after another on one
connection, as HTTP libraries keep it.

A client is a task that reads what has come, and notes when: on two cores it must take little of
them, so it parses no more than it needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from benchmarks.arrivals import Arrival
from benchmarks.engines import EngineError
from benchmarks.server_process import HOST

STALLED_S = 600.0  # without a token of a request
_TEXT = b'"text":'  # in each event that has a token
_END = b"[DONE]\n\n\r\n0\r\n\r\n"  # of the events, and of the chunks of HTTP


def serve_all(
    port: int,
    requests: Sequence[Sequence[Arrival]],
    advance: Callable[[int], None],
) -> list[list[tuple[float, list[float]]]]:
    """For the requests of each client: when each was sent, and when its tokens came, in seconds
    from the start. A client sends its first request at `at_s`, and others so long after the one
    before. Raises EngineError."""
    return asyncio.run(_serve_all(port, requests, advance))


async def _serve_all(
    port: int, requests: Sequence[Sequence[Arrival]], advance: Callable[[int], None]
) -> list[list[tuple[float, list[float]]]]:
    started = perf_counter()

    async def client(own: Sequence[Arrival]) -> list[tuple[float, list[float]]]:
        found = []
        connection = _Connection(port, started)
        try:
            for request in own:
                await asyncio.sleep(request.at_s)
                sent = perf_counter() - started
                found.append((sent, await connection.answer(request)))
                advance(request.n_predict)
        except (OSError, EOFError, TimeoutError) as error:
            raise EngineError(f"an answer broke off: {error!r}") from None
        finally:
            await connection.close()
        return found

    return list(await asyncio.gather(*map(client, requests)))


class _Connection:
    """One client's, which is opened again where the server has closed it."""

    def __init__(self, port: int, started: float) -> None:
        self._port = port
        self._started = started
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def answer(self, request: Arrival) -> list[float]:
        """When the tokens of one answer came: one for each event with text."""
        body = json.dumps(as_json(request)).encode()
        sent = (
            b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (HOST.encode(), len(body), body)
        )
        is_kept = self._streams is not None
        try:
            reader, head = await self._send(sent)
        except (asyncio.IncompleteReadError, ConnectionError):
            if not is_kept:
                raise
            await self.close()  # the server has closed it since the last answer
            reader, head = await self._send(sent)
        if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
            raise EngineError(f"the server refused: {(head + await reader.read(300))[:300]!r}")
        times: list[float] = []
        rest = b""
        while not rest.endswith(_END):
            data = await asyncio.wait_for(reader.read(2**16), STALLED_S)
            if not data:
                await self.close()
                break
            now = perf_counter() - self._started
            data = rest + data
            n = data.count(_TEXT)
            times.extend([now] * n)
            # What may be cut: the end of the answer, or a name that was not counted.
            rest = data.rpartition(_TEXT)[2][-len(_END) :]
        if not times:
            raise EngineError("an answer had no tokens")
        return times

    async def _send(self, data: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Sends a request: where its answer is read, and the head of that."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port)
        reader, writer = self._streams
        writer.write(data)
        return reader, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), STALLED_S)

    async def close(self) -> None:
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def as_json(request: Arrival) -> dict[str, object]:
    """The body of a request."""
    return {
        "prompt": list(request.prompt),
        "max_tokens": request.n_predict,
        "temperature": 0,
        "top_k": 1,  # the other samplers then have one candidate only
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
    }
