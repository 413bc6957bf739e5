"""Connections on which no whole request comes, or something else than HTTP."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from ggmlpy.server import Settings
from ggmlpy.server.protocol import MOST_HEADER_BYTES, LimitedProtocol
from tests.server.conftest import Server, running


class Hasty(LimitedProtocol):
    """With little time for headers."""

    headers_s = 0.2


def answer_to(server: Server, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """The status and the JSON that come back before the connection is closed; 0 if nothing does."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    if not answer:
        return 0, {}
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_headers_that_do_not_end() -> None:
    with running(http=Hasty) as server:
        status, body = answer_to(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        assert status == 408
        assert "0.2 s" in body["error"]["message"]
        assert answer_to(server) == (0, {})  # nothing was sent: nothing comes back
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            connection.sendall(b"GET /hea")  # the next request of the connection
            while data := connection.recv(65536):
                answer += data
        assert b"200 OK" in answer
        assert b"408 Request Timeout" in answer
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


def test_headers_without_end_in_size(server: Server) -> None:
    status, body = answer_to(server, b"GET /health HTTP/1.1\r\nX: ", b"a" * (MOST_HEADER_BYTES + 1))
    assert status == 431
    assert f"{MOST_HEADER_BYTES:,}" in body["error"]["message"]


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_not_http(server: Server, sent: bytes) -> None:
    status, body = answer_to(server, sent)
    assert status == 400
    assert set(body["error"]) == {"message", "type", "param", "code"}


UNKNOWN = b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def answer_of(connection: socket.socket) -> bytes:
    """What comes up to the end of a JSON object."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    return answer


def test_the_rest_of_a_body_after_the_answer(server: Server) -> None:
    """Is no part of the next request, whatever its size."""
    n = 2 * MOST_HEADER_BYTES
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(UNKNOWN % n)
        assert b" 404 " in answer_of(connection)
        for _ in range(2):
            connection.sendall(b"a" * (n // 2))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_does_not_end_after_the_answer() -> None:
    """The connection is closed, without a second answer."""
    with running(http=Hasty) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(UNKNOWN % 100)
            assert b" 404 " in answer_of(connection)
            connection.sendall(b"{")
            assert connection.recv(65536) == b""


def test_a_body_that_does_not_come() -> None:
    with running(Settings(body_timeout_s=0.2)) as server:
        status, body = answer_to(
            server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
        assert status == 408
        assert "0.2 s" in body["error"]["message"]
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
