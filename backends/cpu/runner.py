"""The compiled half of plan execution: walk the records, share each one's work, wait for plans.

A record's work is cut into as many shares as the plan has threads. Any running thread takes the
next share, and a share may be taken once all shares of the record before it are done. A thread that
the system does not schedule holds no share, so the others continue without it: on an oversubscribed
machine a plan gets slower by what other programs use, not by a time slice for every record.

Memory shared by the threads is two lines for the plan and a slot per thread, 128 bytes each:

    line 0     next         the next share: generation << 32 | record << 12 | share
               plan         address of the records; with n_nodes and nth written before `next`
               n_nodes
               nth          shares of a record
               nap_after    ticks of spinning before a waiting thread sleeps for moments
               sleep_after  ticks without a plan before a thread sleeps until it is woken
    line 1     done         shares done in this plan
    slot ith   state        SPINNING <-> PARKED by its own thread, SPINNING <-> RESERVED by thread 0
               seen         the last generation that this thread found finished

Shares are taken by compare-and-exchange of `next`, so what a thread has read of a plan is of the
plan that it takes a share of: a plan does not end while a share is left, and before another is
written `next` is CLOSED. A thread goes to sleep only from SPINNING, and looks for a new plan once
more after it has set PARKED; thread 0 keeps the others awake (RESERVED) before it looks which of
them sleep. So no wake-up can be lost, and an exception between any two lines of Python leaves a
consistent state.
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
NEXT, PLAN, N_NODES, NTH, NAP_AFTER, SLEEP_AFTER = range(0, 48, 8)  # in line 0
DONE = 128  # in a line of its own: threads that wait for it do not slow down those that take shares
SLOTS = 256  # of thread 0, 1, ...
STATE, SEEN = range(0, 16, 8)  # in a slot
SPINNING, PARKED, RESERVED = 0, 1, 2
STOP = -1  # in `next`: threads end
NAP_US = 50
_NODE_SHIFT, _GENERATION_SHIFT = 12, 32
_SHARE_MASK = (1 << _NODE_SHIFT) - 1
_NODE_MASK = (1 << (_GENERATION_SHIFT - _NODE_SHIFT)) - 1
_CLOSED = (1 << _GENERATION_SHIFT) - 1  # in the low half of `next`: past the end of any plan
MAX_NODES = _NODE_MASK
_GENERATION_MASK = 0x7FFF_FFFF  # so that `next` is never negative but for STOP


@inline
def relax(since: Int, nap_after: Int) -> None:
    """One step of a wait that began at `since`: spins at first, then sleeps.

    With more threads than cores, waiting threads must leave the cores to those that work. Not by
    yielding: Linux (6.18, EEVDF) delays a thread that yields in a loop by a time slice for every
    call, and seconds of that starve it.
    """
    if ticks() - since < nap_after:
        pause()
    else:
        nap(NAP_US)


@inline
def wait_until_done(memory: Int, n_shares: Int) -> None:
    """Waits until `n_shares` are done in this plan."""
    if atomic_load_i64(memory + DONE) < n_shares:
        nap_after = load_i64(memory + NAP_AFTER)
        since = ticks()
        while atomic_load_i64(memory + DONE) < n_shares:
            relax(since, nap_after)


@inline
def take_part(memory: Int) -> Int:
    """Runs shares of the posted plan until none is left to take; returns its generation."""
    nap_after = load_i64(memory + NAP_AFTER)
    since = ticks()
    while True:
        word = atomic_load_i64(memory + NEXT)
        node = (word >> _NODE_SHIFT) & _NODE_MASK
        nth = load_i64(memory + NTH)
        if node >= load_i64(memory + N_NODES):
            return word >> _GENERATION_SHIFT
        if atomic_load_i64(memory + DONE) < node * nth:
            relax(since, nap_after)
        else:
            record = load_i64(memory + PLAN) + node * RECORD_BYTES
            share = word & _SHARE_MASK
            following = word + 1
            if share + 1 == nth:
                following = word - share + (1 << _NODE_SHIFT)
            if compare_exchange_i64(memory + NEXT, word, following) == word:
                call_kernel(load_i64(record), record, share, nth)
                atomic_add_i64(memory + DONE, 1)
                since = ticks()


@inline
def reserve(memory: Int, nth: Int) -> Int:
    """Keeps threads 1 to nth - 1 from going to sleep; returns how many already do."""
    parked = 0
    for ith in range(1, nth):
        state = memory + SLOTS + ith * SLOT_BYTES + STATE
        if compare_exchange_i64(state, SPINNING, RESERVED) == PARKED:
            parked += 1
    return parked


@inline
def release_all(memory: Int, nth: Int) -> None:
    for ith in range(1, nth):
        state = memory + SLOTS + ith * SLOT_BYTES + STATE
        compare_exchange_i64(state, RESERVED, SPINNING)


@entry(i64, i64, i64, i64, i64, i64)
def run(memory: Int, plan: Int, n_nodes: Int, nth: Int, all_awake: Int) -> Int:
    """Thread 0: runs the plan with the threads that are awake and returns 0; or, if all must be
    awake, returns how many sleep without having begun."""
    if nth == 1:
        for i in range(n_nodes):
            record = plan + i * RECORD_BYTES
            call_kernel(load_i64(record), record, 0, 1)
        return 0
    parked = reserve(memory, nth)
    if parked > 0 and all_awake != 0:
        return parked
    before = atomic_load_i64(memory + NEXT)
    atomic_store_i64(memory + NEXT, before | _CLOSED)
    store_i64(memory + PLAN, plan)
    store_i64(memory + N_NODES, n_nodes)
    store_i64(memory + NTH, nth)
    atomic_store_i64(memory + DONE, 0)
    generation = ((before >> _GENERATION_SHIFT) + 1) & _GENERATION_MASK
    atomic_store_i64(memory + NEXT, generation << _GENERATION_SHIFT)
    take_part(memory)
    wait_until_done(memory, n_nodes * nth)
    release_all(memory, nth)
    return 0


@entry(i64, i64, i64)
def release(memory: Int, nth: Int) -> Int:
    """Thread 0: lets the reserved threads go to sleep again."""
    release_all(memory, nth)
    return 0


@entry(i64, i64, i64, i64)
def serve(memory: Int, ith: Int, patience: Int) -> Int:
    """Another thread: takes part in posted plans; returns 1 at STOP, 0 if no plan was posted for
    `patience` ticks, or after a plan for SLEEP_AFTER ticks."""
    seen = memory + SLOTS + ith * SLOT_BYTES + SEEN
    since = ticks()
    while ticks() - since < patience:
        word = atomic_load_i64(memory + NEXT)
        if word == STOP:
            return 1
        if word >> _GENERATION_SHIFT == load_i64(seen) or ith >= load_i64(memory + NTH):
            pause()
        else:
            store_i64(seen, take_part(memory))
            patience = load_i64(memory + SLEEP_AFTER)
            since = ticks()
    return 0


@entry(i64)
def read_ticks() -> Int:
    """The clock that waiting is measured by."""
    return ticks()


@entry(i64, i64, i64)
def park(memory: Int, ith: Int) -> Int:
    """Another thread: 1 if it may sleep now, 0 if a plan or STOP is posted or about to be."""
    slot = memory + SLOTS + ith * SLOT_BYTES
    if compare_exchange_i64(slot + STATE, SPINNING, PARKED) != SPINNING:
        return 0
    if atomic_load_i64(memory + NEXT) == STOP:
        atomic_store_i64(slot + STATE, SPINNING)
        return 0
    return 1


@entry(i64, i64, i64)
def unpark(memory: Int, ith: Int) -> Int:
    """Another thread: awake again."""
    atomic_store_i64(memory + SLOTS + ith * SLOT_BYTES + STATE, SPINNING)
    return 0
