"""Clients that break off anywhere, in thousands: the server answers the next request, and nothing
is left of those before."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggmlpy.memory.pages import PagedCells
from tests.server.conftest import Server, open_model, running, wait_for

N_AT_ONCE = 48
N_REQUESTS = int(os.environ.get("GGMLPY_TEST_FAULTS", "600"))


@pytest.fixture(scope="module")
def paged() -> Iterator[Server]:
    """With pages, which are counted."""
    with running(open=lambda: open_model(kv_layout="paged", n_ctx=2048, n_ctx_seq=512)) as server:
        yield server


async def break_off(port: int, rng: random.Random) -> int:
    """One request; its status, 0 if the client breaks off: before the request is whole, before the
    answer begins, or within it."""
    body: dict[str, Any] = {
        "prompt": "Once upon a time " * rng.randrange(1, 20),
        "max_tokens": rng.randrange(1, 40),
        "seed": rng.randrange(100),
        "stream": rng.random() < 0.5,
        "n": rng.choice([1, 1, 1, 3]),
    }
    if rng.random() < 0.05:
        body["temperature"] = "hot"
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(data)
    sent = head + b"Connection: close\r\n\r\n" + data
    ends = rng.choice(["cut", "unread", "within"]) if rng.random() < 1 / 3 else "whole"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if ends == "cut":
            writer.write(sent[: rng.randrange(len(sent))])
            await asyncio.sleep(rng.random() / 100)
            return 0
        writer.write(sent)
        if ends == "unread":
            await asyncio.sleep(rng.random() / 50)
            return 0
        answer = await reader.read(200)
        if ends == "within":
            return 0
        while part := await reader.read(65536):
            answer = answer[:100] + part
        return int(answer.split()[1])
    finally:
        if ends != "whole" and rng.random() < 0.5:
            writer.transport.abort()  # a reset instead of an end
        writer.close()


async def break_off_all(port: int, n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    seeds = [rng.random() for _ in range(n)]
    limit = asyncio.Semaphore(N_AT_ONCE)

    async def one(seed: float) -> int:
        async with limit:
            return await break_off(port, random.Random(seed))

    return await asyncio.gather(*map(one, seeds))


def counted() -> dict[str, int]:
    """What a process must not have more and more of."""
    gc.collect()
    names = ("Reader", "Call", "Generation", "RequestState", "EventStream")
    found = {name: 0 for name in names}
    for each in gc.get_objects():
        name = type(each).__name__
        if name in found and type(each).__module__.startswith("ggmlpy."):
            found[name] += 1
    found["files"] = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc").exists() else 0
    found["threads"] = threading.active_count()
    return found


def test_a_third_of_the_clients_break_off(paged: Server) -> None:
    port = int(paged.url.rpartition(":")[2])
    asyncio.run(break_off_all(port, 100, seed=1))  # pools and caches are filled
    wait_for(paged.is_idle)
    before = counted()
    statuses = asyncio.run(break_off_all(port, N_REQUESTS, seed=2))
    assert set(statuses) <= {0, 200, 400}
    assert statuses.count(200) > N_REQUESTS / 2
    assert N_REQUESTS / 5 < statuses.count(0) < N_REQUESTS / 2
    wait_for(paged.is_idle)
    gate = paged.models.all[0].gate
    assert (gate.n_inside, gate.n_waiting) == (0, 0)
    engine = paged.llm.engine
    assert engine.slots.running() == []
    assert engine.n_waiting == 0
    answer = httpx.post(
        f"{paged.url}/v1/completions",
        json={"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
    ).json()
    wanted = paged.llm.create_completion("Once upon a time", max_tokens=8, temperature=0)
    assert answer["choices"][0]["text"] == wanted["choices"][0]["text"]
    cells = engine.context.memory.caches[0].cells
    assert isinstance(cells, PagedCells)
    with paged.llm._answers.exclusive():
        engine.reset()
        assert cells.n_pages_used() == 0
    wait_for(lambda: all(now <= before[name] + 2 for name, now in counted().items()))
