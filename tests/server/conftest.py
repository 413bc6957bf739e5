"""A server with the packaged model, on a thread of its own, and clients for it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from threading import Thread
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from ggmlpy import Llama, packaged_model

pytest.importorskip("starlette", reason="the extra ggmlpy[server] is not installed")
import uvicorn

from ggmlpy.server import Hosted, Models, Settings, create_app
from ggmlpy.server.protocol import LimitedProtocol
from tests.server.browser import Browser, Page, open_browser
from tests.server.chats import opened

MODEL = "stories"
N_SEQS = 4


def open_model(**options: Any) -> Llama:
    """The packaged model, for N_SEQS sequences."""
    return Llama(packaged_model(), **{"n_ctx_seq": 512, "n_seq_max": N_SEQS, **options})


class Server:
    """A server that runs."""

    def __init__(self, models: Models, settings: Settings, **config: Any) -> None:
        self.models = models
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.app = create_app(models, settings)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                **{
                    "http": LimitedProtocol,
                    "log_config": None,
                    "timeout_graceful_shutdown": 5,
                    **config,
                },
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="server")

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: httpx.get(f"{self.url}/health").status_code != 503, errors=True)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._socket.close()

    @property
    def llm(self) -> Llama:
        return self.models.all[0].llm.llama

    def is_idle(self) -> bool:
        """Whether no request runs or waits anywhere."""
        hosted = self.models.all[0]
        engine = hosted.llm.llama.engine
        return not (hosted.n_using or hosted.gate.n_inside or engine.is_running)


def wait_for(condition: Callable[[], bool], *, errors: bool = False, limit_s: float = 30) -> None:
    """Wait until a condition holds; with `errors` a connection that is refused is no failure."""
    until = monotonic() + limit_s
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            if not errors:
                raise
        assert monotonic() < until, "it took too long"
        sleep(0.01)


def named_events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [each["type"] for each in found] == names
    return found


@contextmanager
def running(
    settings: Settings | None = None, open: Callable[[], Llama] = open_model, **config: Any
) -> Iterator[Server]:
    """A server in a block."""
    settings = settings or Settings()
    server = Server(Models([Hosted([MODEL], open, settings.max_waiting)]), settings, **config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made
    wait_for(server.is_idle)  # whatever a test did, nothing is left


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, just opened, in a tab that knows no chats."""
    made = opened(browser, server)
    yield made
    assert made.problems == []
    made.go(f"{server.url}/health")  # so that it asks for nothing more
    wait_for(server.is_idle)


@pytest.fixture
def local_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of other machines are looked up by nobody: a client that reports home fails."""
    look_up = socket.getaddrinfo

    def local(host: Any, *more: Any, **named: Any) -> Any:
        assert host in ("127.0.0.1", "localhost", None), f"{host} was looked up"
        return look_up(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


def n_waiting() -> int:
    """Records of the log that are not written yet."""
    handlers = logging.getLogger("ggmlpy").handlers
    queues: list[Any] = [each.queue for each in handlers if isinstance(each, QueueHandler)]
    return sum(queue.qsize() for queue in queues)
