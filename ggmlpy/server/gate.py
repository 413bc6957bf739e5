"""The queue in front of an engine: who may enter it, in which order, and who is sent away.

The engine gets as many sequences as it runs, and a few more, so that it has the next one at hand.
All others wait here, where clients take turns: one with many requests delays one with few by one
request each. A client is an API key, or an address where there are no keys. Where too many wait, a
request is refused at once, and told when to come again: the last one of a client that has more
here, or else the one that comes.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

from ggmlpy.server.errors import ApiError

_LONGEST_RETRY_S = 60
_N_DURATIONS = 32  # of the last answers, by which the time to wait is estimated


@dataclass(eq=False, slots=True)
class _Ticket:
    """A request that waits for its turn."""

    n: int
    turn: asyncio.Future[None] = field(repr=False)


class Gate:
    """Lets requests of `n` sequences each enter, `capacity` sequences at a time."""

    def __init__(self, capacity: int, max_waiting: int) -> None:
        self.capacity = capacity
        self.max_waiting = max_waiting
        self.n_inside = 0
        self.n_waiting = 0
        self._queues: dict[str, deque[_Ticket]] = {}  # by client; the first key is the next one
        self._durations: deque[float] = deque(maxlen=_N_DURATIONS)
        self._slots: dict[int, asyncio.Lock] = {}  # of requests that ask for one

    @asynccontextmanager
    async def slot(self, slot: int) -> AsyncIterator[None]:
        """Wait for a slot before entering, so that those who wait for it delay no others. Raises
        ApiError if too many wait."""
        if self.n_waiting >= self.max_waiting:
            raise self._too_many(1)
        self.n_waiting += 1
        lock = self._slots.setdefault(slot, asyncio.Lock())
        try:
            await lock.acquire()
        finally:
            self.n_waiting -= 1
        try:
            yield
        finally:
            lock.release()

    @asynccontextmanager
    async def admitted(self, client: str, n: int = 1) -> AsyncIterator[None]:
        """Wait for the turn of a request of `n` sequences. Raises ApiError if too many wait."""
        n = min(n, self.capacity)  # more run one after another, in the engine
        await self._enter(client, n)
        started = monotonic()
        try:
            yield
        finally:
            self._durations.append(monotonic() - started)
            self.n_inside -= n
            self._let_in()

    async def _enter(self, client: str, n: int) -> None:
        if not self._queues and self.n_inside + n <= self.capacity:
            self.n_inside += n
            return
        self._make_room(client, n)
        ticket = _Ticket(n, asyncio.get_running_loop().create_future())
        self._queues.setdefault(client, deque()).append(ticket)
        self.n_waiting += n
        try:
            await ticket.turn
        except asyncio.CancelledError:
            if ticket in self._queues.get(client, ()):
                self._forget(client, ticket)
            elif not ticket.turn.cancelled() and ticket.turn.exception() is None:
                self.n_inside -= n  # it had its turn meanwhile
            self._let_in()
            raise

    def _make_room(self, client: str, n: int) -> None:
        """Raise ApiError if `n` more sequences of a client may not wait. Those who have more here
        than it would have lose their last requests for it."""
        n_over = self.n_waiting + n - self.max_waiting
        if n_over <= 0:
            return
        tickets = {each: list(queue) for each, queue in self._queues.items()}
        counts = {each: sum(ticket.n for ticket in queue) for each, queue in tickets.items()}
        n_own = counts.pop(client, 0) + n
        lost: list[tuple[str, _Ticket]] = []
        while n_over > 0:
            largest = max(counts, key=lambda each: counts[each], default=client)
            if largest == client or counts[largest] - tickets[largest][-1].n < n_own:
                raise self._too_many(n)
            ticket = tickets[largest].pop()
            lost.append((largest, ticket))
            counts[largest] -= ticket.n
            n_over -= ticket.n
        for _, ticket in lost:
            if not ticket.turn.done():
                ticket.turn.set_exception(self._too_many(ticket.n))
        for each, ticket in lost:
            self._forget(each, ticket)

    def _too_many(self, n: int) -> ApiError:
        wait = self.retry_after_s()
        return ApiError(
            429,
            f"{self.n_waiting} sequences wait for this model, and with {n} of this request there"
            f" would be more than the {self.max_waiting} that may: try again in {wait} s",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(wait)},
        )

    def _forget(self, client: str, ticket: _Ticket) -> None:
        queue = self._queues[client]
        queue.remove(ticket)
        if not queue:
            del self._queues[client]
        self.n_waiting -= ticket.n

    def _let_in(self) -> None:
        while self._queues:
            client = next(iter(self._queues))
            ticket = self._queues[client][0]
            is_gone = ticket.turn.cancelled()
            if not is_gone and self.n_inside + ticket.n > self.capacity:
                return
            self._forget(client, ticket)
            if is_gone:
                continue
            if client in self._queues:  # behind the other clients
                self._queues[client] = self._queues.pop(client)
            self.n_inside += ticket.n
            ticket.turn.set_result(None)

    def retry_after_s(self) -> int:
        """When a request that is refused now would probably not be, in whole seconds."""
        if not self._durations:
            return 1
        mean = sum(self._durations) / len(self._durations)
        expected = mean * max(1, self.n_waiting) / self.capacity
        return max(1, min(_LONGEST_RETRY_S, math.ceil(expected / 2)))
