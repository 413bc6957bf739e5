// Part of emulator.cpp: barriers of blocks, barriers and exchanges of warps.
#pragma once

static void block_barrier(const void* pc, int value) {
    if (n_ended) fail(pc, "__syncthreads after %u threads of the block have ended", n_ended);
    barrier_sum += value;
    if (n_at_barrier + 1 < n_threads) {
        at_barrier[n_at_barrier++] = self;
        wait_for_others(pc);
        return;
    }
    const u32 from = random_below(n_threads);
    for (u32 i = 0; i < n_at_barrier; ++i) {
        const u32 j = i + from;
        make_ready(at_barrier[n_at_barrier ? j % n_at_barrier : 0]);
    }
    n_at_barrier = 0;
    ++epoch;
    barrier_result = barrier_sum;
    barrier_sum = 0;
}

EXPORTED void emulated_block_barrier() { block_barrier(CALLED_FROM, 0); }

EXPORTED int emulated_block_barrier_sum(int value) {
    block_barrier(CALLED_FROM, value);
    return barrier_result;  // none can have passed the next one
}

// Waits until all lanes of the mask have come. True for the last one, which computes what all get and
// then calls `release`.
static bool last_of(const void* pc, u32 mask, Op op) {
    Warp& warp = warps[self->linear / 32];
    const u32 bit = 1u << self->linear % 32;
    const char* name = OP_NAMES[(int)op];
    if (!(mask & bit)) fail(pc, "%s: the mask %08x lacks the calling lane", name, mask);
    mask &= warp.exists;
    if (mask & warp.ended) fail(pc, "%s with lanes that have ended: %08x", name, mask & warp.ended);
    Group& group = warp.groups[__builtin_ctz(mask)];
    if (!group.arrived) {
        group.mask = mask;
        group.op = op;
    } else if (group.mask != mask || group.op != op) {
        fail(pc, "lanes of a warp meet at %s with mask %08x, and at %s with mask %08x",
             OP_NAMES[(int)group.op], group.mask, name, mask);
    }
    group.arrived |= bit;
    ++warp.n_waiting;
    if (group.arrived == mask) return true;
    wait_for_others(pc);
    return false;
}

static void release(u32 mask) {
    Warp& warp = warps[self->linear / 32];
    mask &= warp.exists;
    warp.groups[__builtin_ctz(mask)].arrived = 0;
    warp.n_waiting -= __builtin_popcount(mask);
    Fiber* lanes = self - self->linear % 32;
    for (u32 left = mask & ~(1u << self->linear % 32); left; left &= left - 1) {
        make_ready(lanes + __builtin_ctz(left));
    }
}

EXPORTED void emulated_warp_barrier(u32 mask) {
    if (!last_of(CALLED_FROM, mask, Op::BARRIER)) return;
    ++warps[self->linear / 32].epoch;
    who = who_is(self);
    release(mask);
}

EXPORTED u64 emulated_shuffle(u32 mask, u64 value, int source) {
    const void* pc = CALLED_FROM;
    Fiber* me = self;
    me->value = value;
    me->source = source;
    if (!(mask & warps[me->linear / 32].exists & 1u << source)) {
        fail(pc, "a shuffle reads lane %d, which takes no part in it", source);
    }
    if (last_of(pc, mask, Op::SHUFFLE)) {
        Fiber* lanes = me - me->linear % 32;
        u64 values[32];
        mask &= warps[me->linear / 32].exists;
        for (u32 left = mask; left; left &= left - 1) {
            const int lane = __builtin_ctz(left);
            values[lane] = lanes[lane].value;
        }
        for (u32 left = mask; left; left &= left - 1) {
            Fiber& f = lanes[__builtin_ctz(left)];
            f.value = values[f.source];
        }
        release(mask);
    }
    return me->value;
}

EXPORTED u32 emulated_ballot(u32 mask, int value) {
    Fiber* me = self;
    me->value = value != 0;
    if (last_of(CALLED_FROM, mask, Op::BALLOT)) {
        Fiber* lanes = me - me->linear % 32;
        mask &= warps[me->linear / 32].exists;
        u32 votes = 0;
        for (u32 left = mask; left; left &= left - 1) {
            const int lane = __builtin_ctz(left);
            votes |= (u32)lanes[lane].value << lane;
        }
        for (u32 left = mask; left; left &= left - 1) lanes[__builtin_ctz(left)].value = votes;
        release(mask);
    }
    return (u32)me->value;
}

EXPORTED void emulated_trap() { fail(CALLED_FROM, "__trap"); }

EXPORTED void* emulated_dynamic_shared() { return dynamic_shared; }
