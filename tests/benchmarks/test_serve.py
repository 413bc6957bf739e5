"""The benchmark of servers: its clients, its requests, and one run of our server."""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra ggmlpy[server] is not installed")
from benchmarks import serve
from benchmarks.arrivals import Arrival, Lengths
from benchmarks.engines import EngineError
from benchmarks.http_clients import serve_all
from benchmarks.serving import Setup
from ggmlpy import packaged_model

LENGTHS = Lengths(8, 6, 0.3, 128)


@contextmanager
def answering(answer: bytes, cuts: list[int], *, n_kept: int = 1) -> Iterator[list[int]]:
    """A port that answers requests with the same bytes, cut anywhere, and closes connections after
    `n_kept` of them. Yields the port, behind which the number of each connection's requests comes.
    """
    started, stopped = threading.Event(), threading.Event()
    seen: list[int] = []
    handlers: set[asyncio.Task[None] | None] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        n_answered = 0
        with suppress(asyncio.IncompleteReadError, OSError):  # the client has closed it
            while n_answered < n_kept:
                head = await reader.readuntil(b"\r\n\r\n")
                n = int(head.lower().partition(b"content-length: ")[2].split()[0])
                await reader.readexactly(n)
                last = 0
                for cut in [*cuts, len(answer)]:
                    writer.write(answer[last:cut])
                    await writer.drain()
                    await asyncio.sleep(0.002)
                    last = cut
                n_answered += 1
        seen.append(n_answered)
        writer.close()
        with suppress(OSError):  # a client that has enough closes first
            await writer.wait_closed()

    async def main() -> None:
        server = await asyncio.start_server(one, "127.0.0.1", 0)
        seen.append(server.sockets[0].getsockname()[1])
        started.set()
        while not stopped.is_set():
            await asyncio.sleep(0.01)
        server.close()
        await asyncio.gather(*filter(None, handlers))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(10)
    try:
        yield seen
    finally:
        stopped.set()
        thread.join(10)


@pytest.mark.parametrize("seed", range(4))
def test_clients_count_events_however_they_are_cut(seed: int) -> None:
    chunk = b'30\r\ndata: {"choices":[{"text":"a","index":0}]}\n\n\r\n'
    end = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n" + 7 * chunk + end
    rng = random.Random(seed)
    cuts = sorted({*rng.sample(range(1, len(answer)), 12), len(answer) - rng.randrange(1, 30)})
    advanced: list[int] = []
    requests = [[Arrival(0.0, (1, 2), 7)] * 3, [Arrival(0.01, (3,), 7)]]
    with answering(answer, cuts, n_kept=2) as seen:
        found = serve_all(seen[0], requests, advanced.append)
    assert [len(times) for own in found for _, times in own] == [7, 7, 7, 7]
    assert advanced == [7, 7, 7, 7]
    for own in found:
        for sent, times in own:
            assert times == sorted(times)
            assert sent <= times[0]
    assert found[1][0][0] >= 0.01
    assert sorted(seen[1:]) == [1, 1, 2]  # a connection is kept, and opened again


def test_a_refusal_is_an_error() -> None:
    with (
        answering(b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}", []) as seen,
        pytest.raises(EngineError, match="429"),
    ):
        serve_all(seen[0], [[Arrival(0.0, (1,), 2)]], lambda n: None)


def test_requests_follow_from_the_seed() -> None:
    made = serve.requests_of(3, 2, LENGTHS, 100, seed=5)
    assert made == serve.requests_of(3, 2, LENGTHS, 100, seed=5)
    assert made != serve.requests_of(3, 2, LENGTHS, 100, seed=6)
    assert [len(own) for own in made] == [2, 2, 2]
    assert all(0 < each.at_s < 2 for own in made for each in own)


def test_our_server_is_measured(tmp_path: Path) -> None:
    setup = Setup(packaged_model(), 4, 128, 1, "cpu")
    options = argparse.Namespace(
        rounds=1, peer_server=None, clients=[1, 4], requests=1, prompt_tokens=8, answer_tokens=6,
        sigma=0.3,
    )  # fmt: skip
    rows = list(serve.measure_all(options, setup, 2048))
    assert [(row.server, row.n_clients) for row in rows] == [(serve.NAME, 1), (serve.NAME, 4)]
    for row in rows:
        assert all(value >= 0 for value in row.rounds[0].values())
        assert (row.median("tokens_per_s") or 0) > 0
    assert "ggmlpy serve" in str(serve.table(rows, "a").columns[1]._cells)
