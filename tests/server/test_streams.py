"""Streams: clients that leave, that do not read, and silence."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.server import Settings, endpoint
from ggmlpy.server.events import as_json, as_json_in_parts
from tests.server.conftest import Server, open_model, running, wait_for

LONG = {"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True}


@contextmanager
def raw_post(server: Server, body: dict[str, object]) -> Iterator[socket.socket]:
    """A connection on which a request was written, and nothing was read."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(data), data)
        )
        yield connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_sequence(server: Server, stream: bool) -> None:
    with raw_post(server, {**LONG, "stream": stream}) as connection:
        wait_for(lambda: server.llm.engine.is_running)
        if stream:
            assert connection.recv(100)
    started = time.monotonic()
    wait_for(server.is_idle)
    assert time.monotonic() - started < 5
    assert server.llm.timings.n_generated < 500


@pytest.mark.parametrize("n_probs", [3, 300])
def test_what_is_large_is_written_elsewhere(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, n_probs: int
) -> None:
    """Not in the thread of the event loop, where others would wait for it."""
    threads: list[str] = []

    def told(data: object) -> bytes:
        threads.append(threading.current_thread().name)
        return as_json_in_parts(data)

    monkeypatch.setattr(endpoint, "as_json_in_parts", told)
    body = {**LONG, "n_predict": 4, "n_probs": n_probs, "temperature": 0}
    whole = client.post("/completion", json=body).json()["completion_probabilities"]
    assert [len(each["top_logprobs"]) for each in whole] == [n_probs] * 4
    assert [name.startswith("ggmlpy-prompts") for name in threads] == [True] * (n_probs > 100)
    with client.stream("POST", "/completion", json={**body, "stream": True}) as stream:
        lines = [json.loads(line[6:]) for line in stream.iter_lines() if line]
    assert [p for line in lines for p in line.get("completion_probabilities", ())] == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=40) | st.dictionaries(st.text(), each, max_size=40),
    max_leaves=200,
)


@given(JSON)
def test_json_in_parts_is_the_same(data: object) -> None:
    assert as_json_in_parts(data) == as_json(data)


def test_a_client_that_leaves_while_it_waits() -> None:
    """It is not run when its turn comes."""
    with running(open=lambda: open_model(n_seq_max=1)) as server:
        with raw_post(server, LONG):
            wait_for(lambda: server.llm.engine.is_running)
            gate = server.models.all[0].gate
            with raw_post(server, LONG), raw_post(server, LONG), raw_post(server, LONG):
                wait_for(lambda: gate.n_waiting > 0)
            wait_for(lambda: gate.n_waiting == 0)
        wait_for(server.is_idle)


def test_a_client_that_does_not_read() -> None:
    """Is let go after a while; what it has asked for ends."""
    body = {"prompt": ["a"] * 4, "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 100}
    with running(Settings(send_timeout_s=0.3)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        data = json.dumps(body).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                % (len(data), data)
            )
            wait_for(lambda: server.llm.engine.is_running)
            wait_for(server.is_idle)
        assert server.llm.timings.n_generated < 4 * 100 * 500
        assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("interval", [None, -1, 0, 60])
def test_a_silent_stream_sends_comments(interval: int | None) -> None:
    """The only sequence runs another request, which the gate lets in beside the second one. A
    request may ask for fewer of them, or for none."""
    second = {"prompt": "a", "max_tokens": 2, "stream": True, "sse_ping_interval": interval}
    with running(Settings(ping_s=0.01), open=lambda: open_model(n_seq_max=1)) as server:
        url = f"{server.url}/v1/completions"
        with raw_post(server, LONG):
            wait_for(lambda: server.llm.engine.is_running)
            with httpx.stream("POST", url, json=second, timeout=60) as response:
                lines = [line for line in response.iter_lines() if line]
        assert (": ping" in lines) == (interval is None)
        assert lines[-1] == "data: [DONE]"


def test_a_stop_lets_answers_finish() -> None:
    with running() as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}, timeout=60
        ) as response:
            lines = response.iter_lines()
            next(lines)
            server._server.should_exit = True
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
