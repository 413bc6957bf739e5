"""The compiled half of plan execution: walk the records, meet at barriers, wait for plans.

Memory shared by the threads is one line for the barrier and a slot per thread, 128 bytes each:

    line 0     barrier      arrivals at barriers, counted for ever
               nap_after    ticks of spinning before a waiting thread sleeps for moments
               sleep_after  ticks without a plan before a thread sleeps until it is woken
    slot ith   generation   counts up with each plan posted here; STOP ends the thread
               state        SPINNING <-> PARKED by its own thread, SPINNING <-> RESERVED by thread 0
               plan, n_nodes, base, nth    what to run; `base` is the barrier before it
               seen         the last generation that this thread ran
               ith          its number

A plan starts only when every slot that it needs is RESERVED, and a thread goes to sleep only from
SPINNING. So no wake-up can be lost, and an exception between any two lines of Python leaves
nothing half done. A slot is written by thread 0 only while its thread is RESERVED.
"""

from __future__ import annotations

from ggmlpy.backends.cpu.kernel import RECORD_BYTES, Int, entry, inline
from ggmlpy.backends.cpu.simd.atomic import (
    atomic_add_i64,
    atomic_load_i64,
    atomic_store_i64,
    call_kernel,
    compare_exchange_i64,
    nap,
    pause,
    ticks,
)
from ggmlpy.backends.cpu.simd.core import i64
from ggmlpy.backends.cpu.simd.memory import load_i64, store_i64

MAX_THREADS = 512
SLOT_BYTES = 128
BARRIER, NAP_AFTER, SLEEP_AFTER = range(0, 24, 8)  # in line 0
GENERATION, STATE, PLAN, N_NODES, BASE, NTH, SEEN, ITH = range(0, 64, 8)  # in a slot
SPINNING, PARKED, RESERVED = 0, 1, 2
STOP = -1
NAP_US = 50


@inline
def relax(since: Int, nap_after: Int) -> None:
    """Passes a moment of waiting that began at `since`: spins at first, then sleeps.

    With more threads than cores those who wait must make room for those who are late. Not by
    yielding: Linux (6.18, EEVDF) puts off a thread that yields in a loop by a time slice for every
    call, and seconds of that starve it.
    """
    if ticks() - since < nap_after:
        pause()
    else:
        nap(NAP_US)


@inline
def wait_until(memory: Int, target: Int) -> None:
    """Waits until `target` arrivals have been counted."""
    if atomic_load_i64(memory + BARRIER) < target:
        nap_after = load_i64(memory + NAP_AFTER)
        since = ticks()
        while atomic_load_i64(memory + BARRIER) < target:
            relax(since, nap_after)


@inline
def run_nodes(memory: Int, plan: Int, n_nodes: Int, base: Int, ith: Int, nth: Int) -> None:
    """Calls each record's kernel; all `nth` threads meet after every node."""
    for i in range(n_nodes):
        record = plan + i * RECORD_BYTES
        call_kernel(load_i64(record), record, ith, nth)
        if nth > 1:
            atomic_add_i64(memory + BARRIER, 1)
            wait_until(memory, base + (i + 1) * nth)


@inline
def reserve(memory: Int, nth: Int) -> Int:
    """Keeps threads 1 to nth - 1 from going to sleep; returns how many already do."""
    parked = 0
    for ith in range(1, nth):
        state = memory + ith * SLOT_BYTES + STATE
        if compare_exchange_i64(state, SPINNING, RESERVED) == PARKED:
            parked += 1
    return parked


@inline
def release_all(memory: Int, nth: Int) -> None:
    for ith in range(1, nth):
        compare_exchange_i64(memory + ith * SLOT_BYTES + STATE, RESERVED, SPINNING)


@entry(i64, i64, i64, i64, i64, i64)
def run(memory: Int, plan: Int, n_nodes: Int, nth: Int, patience: Int) -> Int:
    """Thread 0: runs the plan with the others and returns 0; or does nothing and returns how many
    threads must be woken first, after giving them `patience` ticks to wake up."""
    parked = reserve(memory, nth)
    nap_after = load_i64(memory + NAP_AFTER)
    since = ticks()
    while parked > 0 and ticks() - since < patience:
        relax(since, nap_after)
        parked = reserve(memory, nth)
    if parked > 0:
        return parked
    base = atomic_load_i64(memory + BARRIER)
    for ith in range(1, nth):
        slot = memory + ith * SLOT_BYTES
        store_i64(slot + PLAN, plan)
        store_i64(slot + N_NODES, n_nodes)
        store_i64(slot + BASE, base)
        store_i64(slot + NTH, nth)
        atomic_add_i64(slot + GENERATION, 1)
    run_nodes(memory, plan, n_nodes, base, 0, nth)
    release_all(memory, nth)
    return 0


@entry(i64, i64, i64)
def release(memory: Int, nth: Int) -> Int:
    """Thread 0: lets the reserved threads go to sleep again."""
    release_all(memory, nth)
    return 0


@entry(i64, i64, i64)
def serve(slot: Int, patience: Int) -> Int:
    """Another thread: runs what is posted in its slot; 1 at STOP. 0 if nothing came for `patience`
    ticks, or after a plan for SLEEP_AFTER ticks."""
    ith = load_i64(slot + ITH)
    memory = slot - ith * SLOT_BYTES
    since = ticks()
    while ticks() - since < patience:
        generation = atomic_load_i64(slot + GENERATION)
        if generation == STOP:
            return 1
        if generation == load_i64(slot + SEEN):
            pause()
        else:
            store_i64(slot + SEEN, generation)
            base, nth = load_i64(slot + BASE), load_i64(slot + NTH)
            run_nodes(memory, load_i64(slot + PLAN), load_i64(slot + N_NODES), base, ith, nth)
            patience = load_i64(memory + SLEEP_AFTER)
            since = ticks()
    return 0


@entry(i64)
def read_ticks() -> Int:
    """The clock that waiting is measured by."""
    return ticks()


@entry(i64, i64)
def park(slot: Int) -> Int:
    """Another thread: 1 if it may sleep now, 0 if a plan or the end is near."""
    if compare_exchange_i64(slot + STATE, SPINNING, PARKED) != SPINNING:
        return 0
    if atomic_load_i64(slot + GENERATION) == STOP:
        atomic_store_i64(slot + STATE, SPINNING)
        return 0
    return 1


@entry(i64, i64)
def unpark(slot: Int) -> Int:
    """Another thread: awake again."""
    atomic_store_i64(slot + STATE, SPINNING)
    return 0
