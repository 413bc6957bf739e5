"""Clients of an HTTP server that stream completions, each its requests one after another.

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
        for request in own:
            await asyncio.sleep(request.at_s)
            sent = perf_counter() - started
            found.append((sent, await _answer(port, request, started)))
            advance(request.n_predict)
        return found

    return list(await asyncio.gather(*map(client, requests)))


async def _answer(port: int, request: Arrival, started: float) -> list[float]:
    """When the tokens of one answer came: one for each event with text."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        body = json.dumps(as_json(request)).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (HOST.encode(), len(body), body)
        )
        times: list[float] = []
        head, rest = b"", b""
        while data := await asyncio.wait_for(reader.read(2**16), STALLED_S):
            now = perf_counter() - started
            if not head:
                rest += data
                head, found, data = rest.partition(b"\r\n\r\n")
                if not found:
                    head = b""
                    continue
                if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
                    raise EngineError(f"the server refused: {(head + data)[:300]!r}")
                rest = b""
            data = rest + data
            n = data.count(b'"text":')
            times.extend([now] * n)
            rest = data[-7:] if n == 0 else b""  # an event may be cut anywhere
            if b"[DONE]" in data:
                break
    except (OSError, TimeoutError) as error:
        raise EngineError(f"an answer broke off: {error!r}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if not times:
        raise EngineError("an answer had no tokens")
    return times


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
