"""The compiled half of plan execution: walk the records, meet at barriers, wait for plans.

Memory shared by the threads is one line for the barrier and a slot per thread, 128 bytes each:

    line 0     barrier     arrivals at barriers, counted for ever
    slot ith   generation  counts up with each plan posted here; STOP ends the thread
               state       SPINNING <-> PARKED by its own thread, SPINNING <-> RESERVED by thread 0
               plan, n_nodes, base, nth                what to run; `base` is the barrier before it
               seen        the last generation that this thread ran
               ith         its number

A plan starts only when every slot that it needs is RESERVED, and a thread goes to sleep only from
SPINNING. So no wake-up can be lost, and an exception between any two lines of Python leaves
nothing half done. A slot is written by thread 0 only while its thread is RESERVED.
"""

from __future__ import annotations

from ggmlpy.backends.cpu.kernel import RECORD_BYTES, entry, inline
from ggmlpy.backends.cpu.simd.atomic import (
    atomic_add_i64,
    atomic_load_i64,
    atomic_store_i64,
    call_kernel,
    compare_exchange_i64,
    pause,
    yield_thread,
)
from ggmlpy.backends.cpu.simd.core import i64
from ggmlpy.backends.cpu.simd.memory import load_i64, store_i64

MAX_THREADS = 512
SLOT_BYTES = 128
GENERATION, STATE, PLAN, N_NODES, BASE, NTH, SEEN, ITH = range(0, 64, 8)
SPINNING, PARKED, RESERVED = 0, 1, 2
STOP = -1
SPINS_BEFORE_YIELD = 256  # at a barrier, about 10 us: yielding costs little where nobody else waits


@inline
def wait_until(counter: int, target: int) -> None:
    """Spins until the counter reaches `target`; after a while it lets other threads run."""
    spins = 0
    while atomic_load_i64(counter) < target:
        pause()
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_thread()


@inline
def run_nodes(plan: int, n_nodes: int, barrier: int, base: int, ith: int, nth: int) -> None:
    """Calls each record's kernel; all `nth` threads meet after every node."""
    for i in range(n_nodes):
        record = plan + i * RECORD_BYTES
        call_kernel(load_i64(record), record, ith, nth)
        if nth > 1:
            atomic_add_i64(barrier, 1)
            wait_until(barrier, base + (i + 1) * nth)


@inline
def reserve(memory: int, nth: int, patience: int) -> int:
    """Keeps threads 1 to nth - 1 awake; returns how many still sleep after `patience` rounds."""
    while True:
        parked = 0
        for ith in range(1, nth):
            state = memory + ith * SLOT_BYTES + STATE
            if compare_exchange_i64(state, SPINNING, RESERVED) == PARKED:
                parked += 1
        if parked == 0 or patience <= 0:
            return parked
        patience -= 1
        yield_thread()


@inline
def release_all(memory: int, nth: int) -> None:
    for ith in range(1, nth):
        compare_exchange_i64(memory + ith * SLOT_BYTES + STATE, RESERVED, SPINNING)


@entry(i64, i64, i64, i64, i64, i64)
def run(memory: int, plan: int, n_nodes: int, nth: int, patience: int) -> int:
    """Thread 0: runs the plan with the others and returns 0; or does nothing and returns how many
    threads must be woken first."""
    parked: int = reserve(memory, nth, patience)
    if parked > 0:
        return parked
    base = atomic_load_i64(memory)
    for ith in range(1, nth):
        slot = memory + ith * SLOT_BYTES
        store_i64(slot + PLAN, plan)
        store_i64(slot + N_NODES, n_nodes)
        store_i64(slot + BASE, base)
        store_i64(slot + NTH, nth)
        atomic_add_i64(slot + GENERATION, 1)
    run_nodes(plan, n_nodes, memory, base, 0, nth)
    release_all(memory, nth)
    return 0


@entry(i64, i64, i64)
def release(memory: int, nth: int) -> int:
    """Thread 0: lets the reserved threads go to sleep again."""
    release_all(memory, nth)
    return 0


@entry(i64, i64, i64)
def serve(slot: int, spins: int) -> int:
    """Another thread: runs what is posted in its slot; 0 if nothing came for `spins` rounds, 1 at
    STOP."""
    idle = 0
    while idle < spins:
        generation = atomic_load_i64(slot + GENERATION)
        if generation == STOP:
            return 1
        if generation == load_i64(slot + SEEN):
            pause()
            idle += 1
        else:
            store_i64(slot + SEEN, generation)
            ith = load_i64(slot + ITH)
            barrier = slot - ith * SLOT_BYTES
            base, nth = load_i64(slot + BASE), load_i64(slot + NTH)
            run_nodes(load_i64(slot + PLAN), load_i64(slot + N_NODES), barrier, base, ith, nth)
            idle = 0
    return 0


@entry(i64, i64)
def park(slot: int) -> int:
    """Another thread: 1 if it may sleep now, 0 if a plan or the end is near."""
    if compare_exchange_i64(slot + STATE, SPINNING, PARKED) != SPINNING:
        return 0
    if atomic_load_i64(slot + GENERATION) == STOP:
        atomic_store_i64(slot + STATE, SPINNING)
        return 0
    return 1


@entry(i64, i64)
def unpark(slot: int) -> int:
    """Another thread: awake again."""
    atomic_store_i64(slot + STATE, SPINNING)
    return 0
