"""Several models: loaded when they are asked for, unloaded when idle, loaded anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ggmlpy import Llama
from ggmlpy.errors import MissingFile
from ggmlpy.server import Hosted, Models
from ggmlpy.server.errors import ApiError
from ggmlpy.server.hosted import Status
from tests.server.conftest import open_model


class Opened:
    """Models by name, and how often each was opened."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.n: dict[str, int] = dict.fromkeys(names, 0)
        self.fails = False
        hosted = [Hosted([name, f"{name}.gguf"], self._opener(name), 8) for name in names]
        self.models = Models(hosted, **options)

    def _opener(self, name: str) -> Callable[[], Llama]:
        def open() -> Llama:
            if self.fails:
                raise MissingFile(f"{name}.gguf: there is no such file")
            made = open_model(n_seq_max=1, n_ctx_seq=64, backend="reference")
            self.n[name] += 1
            return made

        return open

    @property
    def loaded(self) -> list[str]:
        return [each.name for each in self.models.all if each.is_loaded]


def run(opened: Opened, test: Callable[[Models], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(test(opened.models), 60)
        finally:
            await opened.models.close()

    asyncio.run(main())


def test_loaded_once_by_any_name() -> None:
    opened = Opened("a", "b")

    async def test(models: Models) -> None:
        async def use(name: str | None) -> str:
            async with models.using(name) as hosted:
                assert hosted.is_loaded
                await asyncio.sleep(0.01)
                return hosted.name

        names = await asyncio.gather(*(use(name) for name in (None, "a", "a.gguf", "b", "")))
        assert names == ["a", "a", "a", "b", "a"]
        assert opened.n == {"a": 1, "b": 1}
        with pytest.raises(ApiError, match='no model "c": this server has "a", "b"'):
            models.find("c")

    run(opened, test)


def test_the_least_recently_used_gives_way() -> None:
    opened = Opened("a", "b", "c", max_loaded=2)

    async def test(models: Models) -> None:
        for name in ("a", "b", "a", "c"):
            async with models.using(name):
                pass
        assert opened.loaded == ["a", "c"]
        async with models.using("a"), models.using("c"):
            with pytest.raises(ApiError, match="2 models are loaded and in use") as refused:
                async with models.using("b"):
                    pass
            assert refused.value.status == 503
        async with models.using("b"):
            assert opened.loaded == ["a", "b"]  # the block was left by c before a

    run(opened, test)


def test_loaded_only_when_told() -> None:
    opened = Opened("a", "b", autoload=False)

    async def test(models: Models) -> None:
        async with models.using("a"):
            pass
        with pytest.raises(ApiError, match="/models/load"):
            async with models.using("b"):
                pass
        await models.load(models.find("b"))
        async with models.using("b"):
            with pytest.raises(ApiError, match="1 requests use the model"):
                await models.unload(models.find("b"))
        await models.unload(models.find("b"))
        assert opened.loaded == ["a"]

    run(opened, test)


def test_sleeps_when_idle() -> None:
    """Not while a request has it; the next one wakes it."""
    opened = Opened("a", sleep_idle_s=0.1, autoload=False)

    async def test(models: Models) -> None:
        watch = asyncio.create_task(models.sleep_when_idle())
        hosted = models.all[0]
        async with models.using("a"):
            await asyncio.sleep(0.3)
            assert hosted.is_loaded
        started = time.monotonic()
        while hosted.is_loaded:
            await asyncio.sleep(0.01)
        assert time.monotonic() - started >= 0.09
        assert hosted.status is Status.SLEEPING
        async with models.using(None):
            assert opened.n == {"a": 2}
        watch.cancel()

    run(opened, test)


def test_loaded_anew() -> None:
    """When the requests that run have ended; those that come meanwhile wait."""
    opened = Opened("a", "b")

    async def test(models: Models) -> None:
        async with models.using("a") as hosted:
            first = hosted.llm
            reload = asyncio.create_task(models.reload())
            await asyncio.sleep(0.05)
            later = asyncio.create_task(models.using("a").__aenter__())
            await asyncio.sleep(0.05)
            assert hosted.llm is first
            assert not later.done()
        await reload
        assert (await later).llm is not first
        assert opened.n == {"a": 2, "b": 0}

    run(opened, test)


def test_reloads_one_after_another() -> None:
    """The second one does not cut the requests that the first one has let in."""
    opened = Opened("a", "b")

    async def test(models: Models) -> None:
        async def use(until: asyncio.Event) -> None:
            async with models.using("b") as hosted:
                llm = hosted.llm
                await until.wait()
                assert hosted.is_loaded
                assert hosted.llm is llm

        leave = [asyncio.Event(), asyncio.Event()]
        await models.load(models.all[0])
        first = asyncio.create_task(use(leave[0]))
        while not models.all[1].is_loaded:
            await asyncio.sleep(0.01)
        reloads = [asyncio.create_task(models.reload()) for _ in range(2)]
        await asyncio.sleep(0.01)
        later = asyncio.create_task(use(leave[1]))
        leave[0].set()
        await first
        await reloads[0]
        await asyncio.sleep(0.3)  # the second one would have loaded a, and be at b
        leave[1].set()
        await asyncio.gather(later, *reloads)
        assert opened.n == {"a": 3, "b": 3}

    run(opened, test)


def test_loading_outlives_who_asked() -> None:
    """A client that does not wait leaves no model that seems to have failed, nor two that load."""
    opened = Opened("a")

    async def test(models: Models) -> None:
        for _ in range(2):
            impatient = asyncio.create_task(models.using("a").__aenter__())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
        assert (models.all[0].status, models.all[0].n_using) == (Status.LOADING, 0)
        async with models.using("a"):
            assert opened.n == {"a": 1}

    run(opened, test)


def test_closed_while_loading() -> None:
    opened = Opened("a")

    async def test(models: Models) -> None:
        load = asyncio.create_task(models.load(models.all[0]))
        await asyncio.sleep(0)
        load.cancel()
        await models.close()
        assert (opened.n, opened.loaded) == ({"a": 1}, [])

    run(opened, test)


def test_what_cannot_be_loaded() -> None:
    """Says why, each time it is asked for; loads when it can."""
    opened = Opened("a")
    opened.fails = True

    async def test(models: Models) -> None:
        for _ in range(2):
            with pytest.raises(ApiError, match="no such file") as refused:
                async with models.using("a"):
                    pass
            assert refused.value.status == 503
        assert (models.all[0].status, models.all[0].n_using) == (Status.FAILED, 0)
        opened.fails = False
        async with models.using("a"):
            assert opened.loaded == ["a"]

    run(opened, test)
