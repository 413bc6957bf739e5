"""One replica: the application in a process of its own, somewhere in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from ggmlpy.llama import Llama
from ggmlpy.server.app import create_app
from ggmlpy.server.errors import ApiError
from ggmlpy.server.hosted import Hosted, Models
from ggmlpy.server.settings import Settings

Message = dict[str, Any]  # of ASGI


class Replica:
    """Loads the model, and answers requests that a front sends as ASGI has them."""

    def __init__(self, names: Sequence[str], open: Callable[[], Llama], settings: Settings) -> None:
        self._models = Models([Hosted(names, open, settings.max_waiting)])
        # A response that one replica keeps another one would not find.
        self._app = create_app(self._models, replace(settings, max_stored_bytes=0))
        self._stack = AsyncExitStack()
        self._started: asyncio.Task[None] | None = None

    async def check_health(self) -> None:
        """Raises while the model cannot answer, so that Ray sends nothing, or starts another."""
        await self._start()
        first = self._models.all[0]
        if first.error:
            raise RuntimeError(first.error)

    async def _start(self) -> None:
        if self._started is None:
            lifespan = self._app.router.lifespan_context(self._app)
            self._started = asyncio.ensure_future(self._stack.enter_async_context(lifespan))  # type: ignore[arg-type]
        await self._started

    async def ask(self, prefix: str, scope: Message, body: bytes) -> AsyncGenerator[list[Message]]:
        """The messages of the answer, those that have come together. `prefix` is for the router."""
        await self._start()
        arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        is_sent = False

        async def receive() -> Message:
            nonlocal is_sent
            if not is_sent:
                is_sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            arrived.put_nowait(dict(message))

        async def run() -> None:
            try:
                await self._app({**scope, "state": {}}, receive, send)
            finally:
                arrived.put_nowait(None)

        task = asyncio.ensure_future(run())
        try:
            is_open = True
            while is_open:
                messages = [await arrived.get()]
                while not arrived.empty():
                    messages.append(arrived.get_nowait())
                is_open = None not in messages
                found = [message for message in messages if message is not None]
                if found:
                    yield found
            await task
        finally:  # the client is gone, or all was sent
            gone.set()
            task.cancel()
            await asyncio.wait((task,))

    async def __del__(self) -> None:
        await self._stack.aclose()


def unavailable(reason: str) -> ApiError:
    """Of a request that no replica could answer."""
    return ApiError(503, f"no replica could answer: {reason}", headers={"Retry-After": "1"})
