"""The queue in front of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ggmlpy.server.errors import ApiError
from ggmlpy.server.gate import Gate


class Requests:
    """Requests that stay inside until they are told to leave."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, name: str, n: int = 1) -> None:
        self._leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, n))
        await asyncio.sleep(0)

    async def _run(self, name: str, n: int) -> None:
        async with self.gate.admitted(name[0], n):
            self.inside.append(name)
            await self._leave[name].wait()
            self.inside.remove(name)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await asyncio.gather(self.tasks[name])
        await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.gate.n_inside, self.gate.n_waiting) == (0, 0)


def run(test: Callable[[Requests], Awaitable[None]], capacity: int, max_waiting: int = 100) -> None:
    async def main() -> None:
        requests = Requests(Gate(capacity, max_waiting))
        try:
            await asyncio.wait_for(test(requests), 10)
        finally:
            await requests.end()

    asyncio.run(main())


def test_clients_take_turns() -> None:
    """`b`, who comes last with one request, does not wait for all of `a`."""

    async def test(requests: Requests) -> None:
        for name in ("a1", "a2", "a3", "a4", "b1", "c1"):
            await requests.come(name)
        order = []
        while requests.inside:
            order.append(requests.inside[0])
            await requests.leave(order[-1])
        assert order == ["a1", "a2", "b1", "c1", "a3", "a4"]

    run(test, capacity=1)


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    async def test(requests: Requests) -> None:
        await requests.come("a1")
        await requests.come("b1", 3)
        await requests.come("c1")
        assert requests.inside == ["a1"]  # c1 would fit, but comes behind b1
        await requests.leave("a1")
        assert requests.inside == ["b1"]
        await requests.leave("b1")
        assert requests.inside == ["c1"]

    run(test, capacity=3)


def test_more_sequences_than_fit_get_all_there_is() -> None:
    async def test(requests: Requests) -> None:
        await requests.come("a1", 50)
        assert requests.inside == ["a1"]
        assert requests.gate.n_inside == 4

    run(test, capacity=4)


def test_whoever_waits_can_go() -> None:
    async def test(requests: Requests) -> None:
        for name in ("a1", "b1", "c1"):
            await requests.come(name)
        requests.tasks["b1"].cancel()
        await asyncio.gather(requests.tasks["b1"], return_exceptions=True)
        assert requests.gate.n_waiting == 1
        await requests.leave("a1")
        assert requests.inside == ["c1"]

    run(test, capacity=1)


def test_cancelled_in_the_moment_of_its_turn() -> None:
    """Its place goes to the next one."""

    async def test(requests: Requests) -> None:
        for name in ("a1", "b1", "c1"):
            await requests.come(name)
        requests._leave["a1"].set()
        await asyncio.sleep(0)  # a1 leaves, and gives b1 its turn
        requests.tasks["b1"].cancel()
        await asyncio.gather(requests.tasks["b1"], return_exceptions=True)
        await asyncio.sleep(0)
        assert requests.inside == ["c1"]

    run(test, capacity=1)


def test_too_many_are_sent_away() -> None:
    async def test(requests: Requests) -> None:
        for name in ("a1", "a2", "a3"):
            await requests.come(name)
        with pytest.raises(ApiError, match=r"2 sequences wait.* the 2 that may") as refused:
            async with requests.gate.admitted("a"):
                pass
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        await requests.leave("a1")
        await requests.come("a4")
        assert requests.gate.n_waiting == 2

    run(test, capacity=1, max_waiting=2)


def test_a_client_does_not_have_the_queue_for_itself() -> None:
    """The last of its requests goes for that of one who has fewer, until both have as many."""

    async def test(requests: Requests) -> None:
        for name in ("a1", "a2", "a3", "a4", "a5", "b1"):
            await requests.come(name)
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="4 sequences wait"):
            await requests.tasks["a5"]
        await requests.come("b2")
        await requests.come("b3")
        await asyncio.sleep(0)
        with pytest.raises(ApiError):
            await requests.tasks["a4"]
        with pytest.raises(ApiError):
            await requests.tasks["b3"]
        assert requests.gate.n_waiting == 4
        order = []
        while requests.inside:
            order.append(requests.inside[0])
            await requests.leave(order[-1])
        assert order == ["a1", "a2", "b1", "a3", "b2"]

    run(test, capacity=1, max_waiting=4)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_request_of_many_sequences_takes_no_more_than_its_share(n: int) -> None:
    async def test(requests: Requests) -> None:
        await requests.come("a1", 5)
        for name in ("a2", "a3", "a4", "a5", "a6"):
            await requests.come(name)
        await requests.come("b1", n)
        await asyncio.sleep(0)
        lost = [name for name, task in requests.tasks.items() if task.done()]
        assert lost == {1: ["a6"], 2: ["a5", "a6"], 3: ["b1"], 5: ["b1"]}[n]
        for name in lost:
            with pytest.raises(ApiError, match="that may"):
                await requests.tasks[name]
        assert requests.gate.n_waiting == 5

    run(test, capacity=5, max_waiting=5)


def test_cancelled_in_the_moment_it_is_sent_away() -> None:
    async def test(requests: Requests) -> None:
        for name in ("a1", "a2", "a3"):
            await requests.come(name)
        coming = asyncio.create_task(requests._run("b1", 1))
        requests._leave["b1"] = asyncio.Event()
        await asyncio.sleep(0)  # a3 is sent away, and not told yet
        requests.tasks["a3"].cancel()
        await asyncio.gather(requests.tasks["a3"], return_exceptions=True)
        assert (requests.gate.n_inside, requests.gate.n_waiting) == (1, 2)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)

    run(test, capacity=1, max_waiting=2)


def test_who_waits_for_a_slot_delays_no_others() -> None:
    """They go one after another, in the order of their arrival, and are sent away as others are."""

    async def test() -> None:
        gate, order, leave = Gate(2, 3), list[str](), asyncio.Event()

        async def run(name: str, slot: int) -> None:
            async with gate.slot(slot), gate.admitted("a"):
                order.append(name)
                await leave.wait()

        tasks = [asyncio.create_task(run(name, 0)) for name in ("first", "second", "third")]
        await asyncio.sleep(0)
        assert (gate.n_waiting, gate.n_inside) == (2, 1)
        async with asyncio.timeout(5), gate.admitted("b"):  # at once
            assert order == ["first"]
        other = asyncio.create_task(run("other", 1))
        await asyncio.sleep(0)
        assert order == ["first", "other"]
        waiting = asyncio.create_task(run("gone", 0))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as error:
            async with gate.slot(0):
                pass
        assert (error.value.status, error.value.headers["Retry-After"]) == (429, "1")
        waiting.cancel()
        await asyncio.wait((waiting,))
        leave.set()
        await asyncio.wait_for(asyncio.gather(*tasks, other), 5)
        assert order == ["first", "other", "second", "third"]
        assert (gate.n_waiting, gate.n_inside) == (0, 0)

    asyncio.run(test())
