"""The models of a server, by name: loaded when they are asked for, and unloaded when idle."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import TypeVar

from ggmlpy.async_llama import AsyncLlama
from ggmlpy.common import log
from ggmlpy.errors import GgmlpyError
from ggmlpy.llama import Llama
from ggmlpy.server.errors import ApiError
from ggmlpy.server.gate import Gate

Result = TypeVar("Result")
_MORE = 4  # one sequence more than run for every so many, so that the engine has the next at hand


class Status(Enum):
    """As llama-server names them."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"  # unloaded because nobody asked: the next request loads it
    FAILED = "failed"


class Hosted:
    """A model with its names, which may be loaded or not."""

    def __init__(self, names: Sequence[str], open: Callable[[], Llama], max_waiting: int) -> None:
        """`open` loads the model. The first of the names is the one that answers have."""
        self.names = tuple(names)
        self.created = int(time.time())
        self.status = Status.UNLOADED
        self.error = ""  # why loading failed
        self.n_using = 0  # requests that have it
        self.last_used = time.monotonic()
        self._open = open
        self._max_waiting = max_waiting
        self._llm: AsyncLlama | None = None
        self._gate: Gate | None = None

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def llm(self) -> AsyncLlama:
        """The model, which is loaded in a block of `Models.using`."""
        assert self._llm is not None, f"{self.name} is not loaded"
        return self._llm

    @property
    def gate(self) -> Gate:
        """The queue of its requests."""
        assert self._gate is not None, f"{self.name} is not loaded"
        return self._gate

    @property
    def is_loaded(self) -> bool:
        return self._llm is not None

    async def load(self) -> None:
        """Load it. Raises GgmlpyError, OSError, MemoryError: what opening it raises."""
        self.status, self.error = Status.LOADING, ""
        try:
            llama = await asyncio.to_thread(self._open)
        except BaseException as error:
            self.status, self.error = Status.FAILED, str(error) or type(error).__name__
            raise
        n = llama.engine.context.sizes.n_seq_max
        self._llm, self._gate = AsyncLlama(llama), Gate(n + -(-n // _MORE), self._max_waiting)
        self.status = Status.LOADED
        self.last_used = time.monotonic()

    async def unload(self, status: Status = Status.UNLOADED) -> None:
        """Give its memory back. Its requests end with an error."""
        llm, self._llm, self._gate = self._llm, None, None
        if llm is not None:
            self.status = status
            await llm.close()


class Models:
    """The models of a server. The first one answers requests that name none."""

    def __init__(
        self,
        hosted: Sequence[Hosted],
        *,
        max_loaded: int = 0,
        autoload: bool = True,
        sleep_idle_s: float = math.inf,
    ) -> None:
        """At most `max_loaded` are loaded at a time, the least recently used give way; 0: all.
        Without `autoload` requests for others than the first do not load them. A model that nobody
        asks for `sleep_idle_s` seconds is unloaded until somebody does."""
        self.all = list(hosted)
        self.max_loaded = max_loaded
        self.autoload = autoload
        self.sleep_idle_s = sleep_idle_s
        self._by_name = {name: each for each in reversed(self.all) for name in each.names}
        self._loading = asyncio.Lock()  # one at a time: it takes all threads and much memory
        self._loads: set[asyncio.Task[None]] = set()  # that run, though who asked may be gone
        self._reloading = asyncio.Lock()
        self._open = asyncio.Event()  # cleared while models are loaded anew
        self._open.set()
        self._left = asyncio.Event()  # set when a request leaves

    def find(self, name: str | None) -> Hosted:
        """Raises ApiError for a name that no model has."""
        if name is None or name == "":
            return self.all[0]
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(f'"{each.name}"' for each in self.all)
            raise ApiError(
                404,
                f'there is no model "{name:.200}": this server has {known}',
                param="model",
                code="model_not_found",
            )
        return found

    @asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[Hosted]:
        """A model by name, loaded in the block. Raises ApiError."""
        hosted = self.find(name)
        while not self._open.is_set():
            await self._open.wait()
        hosted.n_using += 1
        try:
            if not hosted.is_loaded:
                if hosted.status in (Status.UNLOADED, Status.FAILED) and not self._may_load(hosted):
                    raise ApiError(
                        400,
                        f'the model "{hosted.name}" is not loaded: POST /models/load loads it',
                        param="model",
                    )
                await self.load(hosted)
            yield hosted
        finally:
            hosted.n_using -= 1
            hosted.last_used = time.monotonic()
            self._left.set()

    @contextmanager
    def watching(self, hosted: Hosted) -> Iterator[None]:
        """A model that is loaded stays so in the block, without being used: it may sleep then."""
        hosted.n_using += 1
        try:
            yield
        finally:
            hosted.n_using -= 1
            self._left.set()

    def _may_load(self, hosted: Hosted) -> bool:
        return self.autoload or hosted is self.all[0]

    async def load(self, hosted: Hosted) -> None:
        """Load a model, unless it is loaded. Raises ApiError.

        It goes on where the task that asks is cancelled: a thread cannot be stopped, and a model
        whose clients are less patient than its loading takes would never be there.
        """
        task = asyncio.ensure_future(self._load_in_turn(hosted))
        self._loads.add(task)
        task.add_done_callback(self._end_load)
        await asyncio.shield(task)

    def _end_load(self, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        if not task.cancelled():
            task.exception()  # it was raised where the task was awaited, and logged

    async def _load_in_turn(self, hosted: Hosted) -> None:
        async with self._loading:
            if hosted.is_loaded:
                return
            await self._make_room()
            await self._load(hosted)

    async def _load(self, hosted: Hosted) -> None:
        try:
            await hosted.load()
        except (GgmlpyError, OSError, MemoryError):
            log.logger.error("%s: %s", hosted.name, hosted.error)
            raise ApiError(503, f"the model cannot be loaded: {hosted.error}") from None

    async def _make_room(self) -> None:
        loaded = [each for each in self.all if each.is_loaded]
        if not self.max_loaded or len(loaded) < self.max_loaded:
            return
        idle = [each for each in loaded if not each.n_using]
        if not idle:
            raise ApiError(
                503,
                f"{len(loaded)} models are loaded and in use, the most that may be: try again",
                headers={"Retry-After": "1"},
            )
        await min(idle, key=lambda each: each.last_used).unload()

    async def unload(self, hosted: Hosted) -> None:
        """Unload a model. Raises ApiError where requests have it."""
        async with self._loading:
            if hosted.n_using:
                raise ApiError(
                    409, f"{hosted.n_using} requests use the model: it is unloaded when they end"
                )
            await hosted.unload()

    async def reload(self) -> None:
        """Load the loaded models anew, as their files are now. Requests that run end first, others
        wait. Raises ApiError."""
        async with self._reloading:  # the end of one lets requests in, which another one would cut
            self._open.clear()
            try:
                while any(each.n_using for each in self.all):
                    self._left.clear()
                    await self._left.wait()
                async with self._loading:
                    for hosted in [each for each in self.all if each.is_loaded]:
                        await hosted.unload()
                        await self._load(hosted)
            finally:
                self._open.set()

    async def sleep_when_idle(self) -> None:
        """Unload models that nobody asks for. Never returns."""
        while True:
            await asyncio.sleep(min(1.0, self.sleep_idle_s / 4))
            limit = time.monotonic() - self.sleep_idle_s
            async with self._loading:
                for each in self.all:
                    if each.is_loaded and not each.n_using and each.last_used <= limit:
                        await each.unload(Status.SLEEPING)

    async def close(self) -> None:
        """Unload all of them, those that are being loaded too."""
        await asyncio.gather(*self._loads, return_exceptions=True)
        for each in self.all:
            await each.unload()


async def in_pool(pool: Executor, function: Callable[[], Result]) -> Result:
    """The result of a function that takes a while, from a thread of a pool."""
    return await asyncio.get_running_loop().run_in_executor(pool, function)
