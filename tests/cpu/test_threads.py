"""Who takes part in a plan, and when it is over; who may sleep, and who is woken."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from ggmlpy.backends.cpu import runner
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.plan import Plan, make_record
from ggmlpy.backends.cpu.runner import PARKED, RESERVED, SLOT_BYTES, SLOTS, SPINNING
from ggmlpy.backends.cpu.threads import ThreadPool, _native, aligned_zeros
from ggmlpy.errors import BackendError
from tests.cpu.conftest import jit_for
from tests.cpu.plan_kernels import meet
from tests.cpu.test_plan import Counting

N_THREADS = 4
PATIENCE = 1 << 33  # ticks: seconds


def address(counting: Counting) -> int:
    return int(counting.plan._memory.ctypes.data)


def states(memory: np.ndarray, n_threads: int = N_THREADS) -> list[int]:
    """What threads 1, 2, ... are doing."""
    words = memory.view(np.int64)
    return [int(words[(SLOTS + i * SLOT_BYTES + runner.STATE) // 8]) for i in range(1, n_threads)]


# --- threads ------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool()
    yield pool
    pool.stop()


class Meeting:
    """A plan in which all shares of a node run at the same time, and thread 0's ends first."""

    def __init__(self, pool: ThreadPool, n_nodes: int) -> None:
        self.pool = pool
        self.counters = np.zeros(2, np.int64)  # shares begun, ended
        self.found = np.zeros((n_nodes, N_THREADS), np.int64)
        self.stacks = np.zeros((n_nodes, N_THREADS), np.int64)
        begun = self.counters.ctypes.data
        records = []
        for found, stacks in zip(self.found, self.stacks, strict=True):
            params = {"found": found.ctypes.data, "stacks": stacks.ctypes.data, "main": 0}
            records.append(make_record(meet, [], {"begun": begun, "ended": begun + 8} | params))
        self.plan = Plan(jit_for("generic"), [meet] * n_nodes, records)
        self._run(1)
        for i in range(n_nodes):
            self.plan.record(i)["main"] = self.stacks[0, 0]

    def _run(self, n_threads: int) -> None:
        self.counters[:] = 0
        self.pool.run(int(self.plan._memory.ctypes.data), len(self.plan), n_threads)

    def check(self, n_threads: int) -> None:
        """Every share on a thread of its own, after all shares of the node before; when the run
        returns all have ended."""
        self._run(n_threads)
        assert self.counters[1] == len(self.plan) * n_threads
        for i, (found, stacks) in enumerate(zip(self.found, self.stacks, strict=True)):
            assert len(set(stacks[:n_threads].tolist())) == n_threads
            assert (found[:n_threads] >= i * n_threads).all()


@pytest.mark.parametrize("n_threads", [2, N_THREADS])
def test_a_run_is_over_when_the_last_share_is(pool: ThreadPool, n_threads: int) -> None:
    Meeting(pool, 2).check(n_threads)


def test_threads_fall_asleep_and_all_are_woken(pool: ThreadPool) -> None:
    meeting = Meeting(pool, 1)
    meeting.check(N_THREADS)
    for _ in range(1_000_000):  # until they sleep
        if states(pool._memory) == [PARKED] * (N_THREADS - 1):
            break
    assert states(pool._memory) == [PARKED] * (N_THREADS - 1)
    pool._word(runner.SLEEP_AFTER)[0] = 1 << 60
    meeting.check(N_THREADS)
    assert states(pool._memory) == [SPINNING] * (N_THREADS - 1)
    pool.stop()
    assert not any(thread.is_alive() for thread in pool._threads)


# --- the calling thread alone, beside threads that are only noted down --------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> ThreadPool:
    """A pool that believes in threads: 1 and 3 sleep, 2 does not."""
    pool = ThreadPool()
    monkeypatch.setattr(pool, "_start_threads", lambda n_threads: None)
    pool._beds = [threading.Lock() for _ in range(N_THREADS - 1)]
    for bed in pool._beds:
        bed.acquire()
    assert pool._park(pool._base, 1) == pool._park(pool._base, 3) == 1
    return pool


def test_those_who_sleep_are_woken_and_the_run_does_not_wait_for_them(alone: ThreadPool) -> None:
    counting = Counting(jit_for("generic"), 3)
    alone.run(address(counting), 3, N_THREADS)
    assert [bed.locked() for bed in alone._beds] == [False, True, False]
    assert counting.counter[0] == 3 * N_THREADS
    assert states(alone._memory) == [PARKED, SPINNING, PARKED]


def test_an_interrupt_lets_threads_sleep_again(
    alone: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(n_threads: int) -> None:
        assert states(alone._memory) == [PARKED, RESERVED, PARKED]
        raise KeyboardInterrupt

    counting = Counting(jit_for("generic"), 3)
    monkeypatch.setattr(alone, "_wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        alone.run(address(counting), 3, N_THREADS)
    assert counting.counter[0] == 0
    assert states(alone._memory) == [PARKED, SPINNING, PARKED]


def test_a_plan_has_a_largest_number_of_records(
    alone: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(alone, "_run", lambda memory, plan, n_nodes, *args: given.append(n_nodes))
    alone.run(0, runner.MAX_NODES - 1, N_THREADS)
    with pytest.raises(BackendError, match="the plan has 1048575 records, must be below 1048575"):
        alone.run(0, runner.MAX_NODES, N_THREADS)
    assert given == [runner.MAX_NODES - 1]


# --- the compiled half, on memory of its own -----------------------------------------------------


class Memory:
    """The runner's memory, and its functions called one after another."""

    def __init__(self) -> None:
        self.bytes = aligned_zeros(SLOTS + N_THREADS * SLOT_BYTES)
        self.address = int(self.bytes.ctypes.data)
        self.counting = Counting(jit_for("generic"), 2)

    def call(self, function: Entry, *args: int) -> int:
        return _native()[function](self.address, *args)

    def run(self, n_threads: int, *, all_awake: bool) -> int:
        return self.call(runner.run, address(self.counting), 2, n_threads, all_awake)

    def post(self, n_threads: int) -> None:
        """A plan of which no share is taken, as thread 0 leaves it."""
        self[runner.PLAN], self[runner.N_NODES] = address(self.counting), 2
        self[runner.NTH] = n_threads
        self[runner.NEXT] = 1 << 32

    def __setitem__(self, offset: int, value: int) -> None:
        self.bytes.view(np.int64)[offset // 8] = value

    @property
    def states(self) -> list[int]:
        return states(self.bytes)

    @property
    def n_done(self) -> int:
        return int(self.counting.counter[0])


@pytest.mark.parametrize("sleeper", [1, 2, 3])
def test_nothing_begins_while_one_sleeps_and_the_others_are_kept_awake(sleeper: int) -> None:
    memory = Memory()
    assert memory.call(runner.park, sleeper) == 1
    assert memory.run(N_THREADS, all_awake=True) == 1
    assert memory.n_done == 0
    others = [ith for ith in range(1, N_THREADS) if ith != sleeper]
    assert [memory.call(runner.park, ith) for ith in others] == [0, 0]
    memory.call(runner.release, N_THREADS)
    assert [memory.call(runner.park, ith) for ith in others] == [1, 1]


def test_after_a_run_everyone_may_sleep() -> None:
    memory = Memory()
    assert memory.run(N_THREADS, all_awake=True) == 0
    assert memory.n_done == 2 * N_THREADS
    assert [memory.call(runner.park, ith) for ith in range(1, N_THREADS)] == [1, 1, 1]
    memory.call(runner.unpark, 2)
    assert memory.states == [PARKED, SPINNING, PARKED]


def test_nobody_sleeps_at_the_end() -> None:
    memory = Memory()
    memory[runner.NEXT] = runner.STOP
    assert memory.call(runner.park, 1) == 0
    assert memory.states[0] == SPINNING
    assert memory.call(runner.serve, 1, PATIENCE) == 1


def test_a_plan_is_served_by_as_many_threads_as_it_asks_for() -> None:
    memory = Memory()
    memory.post(n_threads=2)
    assert memory.call(runner.serve, 2, 1000) == 0
    assert memory.n_done == 0
    assert memory.call(runner.serve, 1, PATIENCE) == 0
    assert memory.n_done == 2 * 2


@pytest.mark.parametrize("waits", [False, True])
def test_after_a_plan_a_thread_waits_as_long_as_it_is_told(waits: bool) -> None:
    """Not as long as for the first one. Here the plan's last share says that this is the end, which
    a thread that waits gets to see."""
    memory = Memory()
    memory.post(n_threads=2)
    memory[runner.N_NODES], memory[runner.NEXT] = 1, 1 << 32 | 1  # share 0 is taken
    memory.counting.counter[0] = runner.STOP
    memory.counting.plan.record(0)["seen"] = memory.address + runner.NEXT - 8  # of share 1
    memory[runner.SLEEP_AFTER] = PATIENCE if waits else 0
    assert memory.call(runner.serve, 1, PATIENCE) == waits
