"""The queue of a mock device: runs work in order, with delays, and waits for other queues."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ggmlpy.backends.base import Event
from ggmlpy.backends.mock.hazards import Clock, merge

HOST = "the host"
_HOST_CLOCK: Clock = {HOST: 0}


def host_clock() -> Clock:
    """The host's clock. Each call advances the host's own time."""
    _HOST_CLOCK[HOST] += 1
    return _HOST_CLOCK


@dataclass(slots=True)
class _Work:
    run: Callable[[], None]
    after: MockEvent | None = None  # which it waits for


class MockEvent(Event):
    """A point in a queue, behind the work that was submitted before it."""

    def __init__(self, queue: Queue, n_submitted: int, clock: Clock) -> None:
        self.queue = queue
        self.n_submitted = n_submitted
        self.clock = clock

    def wait(self) -> None:
        """Block the host until the queue has passed this point."""
        self.queue.run_up_to(self.n_submitted)
        merge(_HOST_CLOCK, self.clock)


class Queue:
    """Runs work in order: some of it when it is submitted, the rest when something waits for it."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._rng = random.Random(f"{name} {seed}")
        self._work: deque[_Work] = deque()
        self._n_submitted = self._n_done = 0
        self._clock: Clock = {name: 0}

    def begin(self) -> Clock:
        """The clock of a piece of work that the host submits now."""
        merge(self._clock, host_clock())
        self._clock[self.name] += 1
        return self._clock

    def submit(self, run: Callable[[], None]) -> None:
        """Queue work whose clock `begin` returned, and run a random number of queued pieces."""
        self._append(_Work(run))
        for _ in range(self._rng.randrange(len(self._work) + 1)):
            self._run_next()

    def record(self) -> MockEvent:
        """An event behind all work that was submitted so far."""
        return MockEvent(self, self._n_submitted, dict(self._clock))

    def wait(self, event: MockEvent) -> None:
        """Let work that is submitted from now on wait for an event of any queue.

        The wait is work itself: who waits for the queue waits for the event too.
        """
        merge(self._clock, event.clock)
        self._append(_Work(lambda: None, event))

    def synchronize(self) -> None:
        """Block the host until all work has run."""
        self.record().wait()

    def run_up_to(self, n_submitted: int) -> None:
        """Run the first `n_submitted` pieces of work, in order."""
        while self._n_done < n_submitted:
            self._run_next()

    def _append(self, work: _Work) -> None:
        self._work.append(work)
        self._n_submitted += 1

    def _run_next(self) -> None:
        if not self._work:  # run meanwhile by another queue, which this one's work waited for
            return
        work = self._work.popleft()
        if work.after is not None:
            work.after.queue.run_up_to(work.after.n_submitted)
        self._n_done += 1
        work.run()
