"""GET /engine: what it tells is what the engine does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.memory.layouts import KVLayout
from ggmlpy.server import Settings
from ggmlpy.server.hosted import Status
from ggmlpy.server.page.view import runs
from tests.server.conftest import N_SEQS, Server, open_model, running, wait_for

OPENING = "Once upon a time there was a little girl named Lily who lived in a big house. "
Held = dict[int, set[int]]  # cells by sequence


@contextmanager
def watching(url: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The snapshots of a server."""
    with httpx.stream("GET", f"{url}/engine", timeout=30) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line.startswith("data:"))
        yield (json.loads(line.removeprefix("data:")) for line in lines)


def held(cache: dict[str, Any]) -> Held:
    """Which cells of a cache that is told cell by cell belong to whom, as the page reads it.

    Cells are numbered through all streams.
    """
    assert cache["n_each"] == 1
    streams = cache["streams"]
    found: Held = {}
    n = 0
    for i, stream in enumerate(streams):
        for owner, length in zip(stream["owners"], stream["lengths"], strict=True):
            for seq in stream["holders"][owner]:
                number = i if len(streams) > 1 else seq
                found.setdefault(number, set()).update(range(n, n + length))
            n += length
        assert n == (i + 1) * cache["n_cells"] // len(streams)
    return found


def ask(server: Server, prompt: str, n: int, **more: Any) -> None:
    body = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, **more}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()


@pytest.mark.parametrize("layout", ["unified", "split", "paged"])
def test_cells_are_those_of_the_memory(layout: KVLayout) -> None:
    with running(open=lambda: open_model(kv_layout=layout)) as server:
        # Six sequences on four slots, all of which have the opening in common.
        threads = [Thread(target=ask, args=(server, OPENING + "She", 20 + 9 * i)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(server.is_idle)
        with watching(server.url) as snapshots:
            seen = next(snapshots)
        memory = server.llm.engine.context.memory
        (cache,) = seen["caches"]
        cells = memory.caches[0].cells
        first = {seq: cells.stream_of(seq) * cells.n_ctx for seq in range(N_SEQS)}
        truth = {seq: set((first[seq] + cells.of(seq)).tolist()) for seq in range(N_SEQS)}
        assert held(cache) == {seq: each for seq, each in truth.items() if each}
        assert cache["n_used"] == memory.n_used() > 100
        assert [each["n_held"] for each in seen["slots"]] == [len(truth[i]) for i in range(N_SEQS)]
        shared = set.intersection(*(truth[i] for i in range(N_SEQS)))
        assert (len(shared) > 15) == (layout != "split")  # the opening
        assert cache["page_size"] == (8 if layout == "paged" else 1)
        assert (seen["sizes"]["layout"], seen["sizes"]["n_seq_max"]) == (layout, N_SEQS)
        timings = server.llm.engine.timings
        assert seen["totals"]["n_reused"] == timings.n_reused > 0
        assert seen["totals"]["n_generated"] == timings.n_generated


def test_every_snapshot_under_load_is_of_one_moment(server: Server) -> None:
    texts = {name: OPENING + name for name in ("Tom", "Lily", "The cat", "One day", "They")}
    with watching(server.url) as snapshots:
        assert next(snapshots)["status"] == "loaded"
        threads = [
            Thread(target=ask, args=(server, text, 400)) for text in texts.values() for _ in "123"
        ]
        for thread in threads:
            thread.start()
        seen = []
        for snapshot in snapshots:
            seen.append(snapshot)
            if not any(thread.is_alive() for thread in threads):
                break
    n_running = [sum(slot["state"] != "idle" for slot in each["slots"]) for each in seen]
    assert max(n_running) == N_SEQS
    assert max(sum(each["queue"].values()) for each in seen) > N_SEQS
    for each in seen:
        cells = held(each["caches"][0])
        for slot in each["slots"]:
            assert len(cells.get(slot["id"], ())) == slot["n_held"]
            if slot["state"] != "idle":
                assert slot["n_prompt_done"] <= slot["n_prompt"]
                # What the cache holds are the prompt and the answer, but for its last token.
                n_answer = max(0, slot["n_decoded"] - 1)
                assert slot["n_held"] == slot["n_prompt_done"] + n_answer
        assert len(set().union(*cells.values())) == each["caches"][0]["n_used"]
        step = each["step"]
        for kind in ("n_prompt", "n_decoded", "n_drafted"):
            assert step[kind] == sum(part[kind] for part in step["parts"])
        assert len({part["seq"] for part in step["parts"]}) == len(step["parts"])
        assert not any(text in json.dumps(each) for text in texts)
    totals = [each["totals"]["n_generated"] for each in seen]
    assert totals == sorted(totals)


def test_a_server_that_is_watched_stops_at_once() -> None:
    with running() as server, watching(server.url) as snapshots:
        next(snapshots)
        started = monotonic()
        server.stop()
        assert monotonic() - started < 3


def test_a_model_that_is_not_loaded_is_not_loaded_for_it() -> None:
    with running() as server:
        hosted = server.models.all[0]
        assert httpx.post(f"{server.url}/models/unload", json={"model": hosted.name}).is_success
        with watching(server.url) as snapshots:
            assert next(snapshots) == {"model": hosted.name, "status": "unloaded"}
            ask(server, OPENING, 1)
            wait_for(lambda: next(snapshots)["status"] == "loaded")
        assert hosted.status is Status.LOADED


def test_unknown_models_are_refused(client: httpx.Client) -> None:
    answer = client.get("/engine", params={"model": "none"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def test_two_who_watch_get_the_same() -> None:
    with running(Settings()) as server, watching(server.url) as one, watching(server.url) as other:
        times = [{next(each)["time_s"] for _ in range(4)} for each in (one, other)]
        assert times[0] & times[1]


@given(
    n_seqs=st.integers(1, 20),
    n_held=st.integers(0, 40),
    n_more=st.integers(0, 40),
    n_each=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_runs(n_seqs: int, n_held: int, n_more: int, n_each: int, seed: int) -> None:
    """Spelt out again they are what was held."""
    n_cells = max(1, n_held + n_more)
    table = np.random.default_rng(seed).random((n_seqs, n_held)) < 0.2
    table = np.repeat(table, 2, axis=1)[:, :n_held]  # some runs are longer than a cell
    found = runs(table, n_cells, n_each)
    whole = np.zeros((n_seqs, n_cells), np.bool_)
    whole[:, :n_held] = table
    groups = [
        np.flatnonzero(whole[:, i : i + n_each].any(axis=1)).tolist()
        for i in range(0, n_cells, n_each)
    ]
    spelt = [
        found["holders"][owner]
        for owner, length in zip(found["owners"], found["lengths"], strict=True)
        for _ in range(length)
    ]
    assert spelt == groups
    assert len(found["holders"]) == len(set(map(tuple, found["holders"])))
    assert all(a != b for a, b in zip(found["owners"], found["owners"][1:], strict=False))
