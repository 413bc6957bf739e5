// Part of emulator.cpp: checks of each load and store of a kernel.
//
// Units are compiled with -fsanitize=thread, which calls __tsan_read4(address) before a load of 4 bytes
// and so on, and with -fsanitize=alignment,bounds. The functions they call are here, and not those of
// the compiler's own library. Memory has a shadow:
//
//   state   per byte: undefined, defined, or the target of an asynchronous copy
//   tag     per word of 4 bytes: the launch (of shared memory the block) that its accesses are of, and
//           whether they are kept for each of its bytes
//   whole   per word: its last accesses
//   bytes   per byte: its last accesses, if bytes of the word were accessed alone
//
// An access is a race if one before it, of the same launch, is not ordered with it and one of the two
// writes. Ordered are those of one thread, those of a block with __syncthreads between, and those of a
// warp with __syncwarp between. Atomic accesses do not race with each other. Blocks are not ordered,
// but for the one that a counter finds to be the last: it is behind all that ran before it.
#pragma once

enum State : u8 { UNDEFINED = 0, DEFINED = 1, BEING_COPIED = 2 };

// Who made an access, in 32 bits: the thread, flags, the warp's epoch.
constexpr u32 THREAD = 0x3ff;
constexpr u32 SEVERAL_LANES = 1 << 10;  // of its warp, in its epoch
constexpr u32 SEVERAL_WARPS = 1 << 11;
constexpr u32 OTHER_BLOCKS = 1 << 12;   // earlier
constexpr u32 ATOMIC = 1 << 13;
constexpr int EPOCH_SHIFT = 16;

struct Accesses {
    u32 write_epoch, writer;  // the epoch is 0 if there was none
    u32 read_epoch, reader;
};

struct Shadow {
    u64 begin;
    u8* states;
    u32* tags;
    Accesses* whole;
    Accesses* bytes;
};
constexpr u64 SHADOW_BYTES = 1 + 1 + 4 + 16;  // per byte

static Shadow shadow_in(u64 begin, u64 n_bytes, u64 memory) {
    return {
        begin, (u8*)memory, (u32*)(memory + n_bytes), (Accesses*)(memory + 2 * n_bytes),
        (Accesses*)(memory + 6 * n_bytes),
    };
}

constexpr u64 MAX_REGIONS = 256;
constexpr u64 MAX_STATIC = 4 << 20;  // of all kernels of a unit

// Memory that the launch may access. Ranges of the device come first, then shared memory.
struct Region {
    u64 begin, end;
    const char* what;
    bool writes;
    bool is_shared;
    const Shadow* shadow;
};

static Shadow device_shadow, static_shadow, dynamic_shadow;
static Region regions[MAX_REGIONS];
static u64 n_regions;
static const Region *last_read, *last_written;

static bool make_shadows() {
    static u64 shared = 0;
    if (!shared) {
        void* found = reserve((MAX_STATIC + MAX_SHARED) * SHADOW_BYTES);
        if (found == MAP_FAILED) return false;
        shared = (u64)found;
        dynamic_shadow = shadow_in((u64)dynamic_shared, MAX_SHARED, shared);
    }
    const u64 begin = launch->shared & ~15ull;
    if (launch->shared_end - begin > MAX_STATIC) return false;
    static_shadow = shadow_in(begin, MAX_STATIC, shared + MAX_SHARED * SHADOW_BYTES);
    device_shadow = shadow_in(
        launch->device, launch->device_bytes, launch->device + launch->device_bytes
    );
    n_regions = 0;
    if (launch->n_ranges + 2 > MAX_REGIONS) return false;
    for (u64 i = 0; i < launch->n_ranges; ++i) {
        const Range& range = launch->ranges[i];
        regions[n_regions++] = {
            range.begin, range.end, range.what, range.writes != 0, false, &device_shadow
        };
    }
    const u64 dynamic = (u64)dynamic_shared;
    regions[n_regions++] = {
        launch->shared, launch->shared_end, "static shared memory", true, true, &static_shadow
    };
    regions[n_regions++] = {
        dynamic, dynamic + launch->shared_bytes, "dynamic shared memory", true, true,
        &dynamic_shadow
    };
    last_read = last_written = &regions[n_regions - 1];
    return true;
}

// Shared memory is undefined when a block starts.
static void forget_shared_memory() {
    ++block_tag;
    memset(static_shadow.states, UNDEFINED, launch->shared_end - static_shadow.begin);
    memset(dynamic_shadow.states, UNDEFINED, launch->shared_bytes);
}

// "y + 20"; of static shared memory, whose variables lie in an order of the compiler's, no offset.
struct Place {
    char text[128];
    Place(const Region& region, u64 address) {
        if (region.shadow == &static_shadow) {
            snprintf(text, sizeof text, "%s", region.what);
        } else {
            snprintf(text, sizeof text, "%s + %llu", region.what,
                     (unsigned long long)(address - region.begin));
        }
    }
};

static const char* verb(bool writes) { return writes ? "writes" : "reads"; }

[[noreturn, gnu::cold]] static void fail_outside(const void* pc, u64 address, u32 n, bool writes) {
    const Region* nearest = nullptr;
    u64 least = 1 << 16;
    for (u64 i = 0; i < n_regions; ++i) {
        const Region& region = regions[i];
        const bool inside = region.begin <= address && address + n <= region.end;
        if (inside) {
            fail(pc, "%s %u bytes at %s, which it may only read", verb(writes), n,
                 Place(region, address).text);
        }
        const u64 distance = address + n > region.end ? address + n - region.end
                                                      : region.begin - address;
        if (region.begin < region.end && distance < least) {
            least = distance;
            nearest = &region;
        }
    }
    if (!nearest) {
        fail(pc, "out of bounds: %s %u bytes at address 0x%llx, which are none of the launch's",
             verb(writes), n, (unsigned long long)address);
    }
    fail(pc, "out of bounds: %s %u bytes at %s %c %llu, which has %llu bytes", verb(writes), n,
         nearest->what, address < nearest->begin ? '-' : '+',
         (unsigned long long)(address < nearest->begin ? nearest->begin - address
                                                       : address - nearest->begin),
         (unsigned long long)(nearest->end - nearest->begin));
}

[[noreturn, gnu::cold]] static void fail_undefined(const void* pc, u64 address, u32 n, const Region& region) {
    const Place place(region, address);
    const u8* states = region.shadow->states + (address - region.shadow->begin);
    for (u32 i = 0; i < n; ++i) {
        if (states[i] == BEING_COPIED) {
            fail(pc, "reads %u bytes at %s, to which a copy may not be complete: no copy_async_wait",
                 n, place.text);
        }
    }
    fail(pc, "undefined: reads %u bytes at %s, which were not written%s", n, place.text,
         region.is_shared ? " so far: is a barrier missing?" : "");
}

[[noreturn, gnu::cold]] static void fail_race(
    const void* pc, u64 address, u32 n, const Region& region, bool writes, bool before_writes,
    u32 before_epoch, u32 before
) {
    const Place place(region, address);
    const char* did = before_writes ? "wrote" : "read";
    if (!region.is_shared && (before & OTHER_BLOCKS || before_epoch < first_epoch_of_block)) {
        fail(pc, "a race: %s %u bytes at %s, which another block of the launch %s", verb(writes), n,
             place.text, did);
    }
    fail(pc, "a race: %s %u bytes at %s, which thread %u %s with no barrier between", verb(writes), n,
         place.text, before & THREAD, did);
}

static inline bool is_ordered(u32 before_epoch, u32 before) {
    if (before & OTHER_BLOCKS || before_epoch < first_epoch_of_block) return is_after_blocks;
    if (before_epoch < epoch) return true;
    if (before & SEVERAL_WARPS || (before ^ who) & THREAD & ~31u) return false;
    if (before >> EPOCH_SHIFT != who >> EPOCH_SHIFT) return true;
    return !(before & SEVERAL_LANES) && !((before ^ who) & THREAD);
}

// Adds the running thread to who made the last accesses of a kind.
static inline void add(u32& before_epoch, u32& before, u32 flags) {
    if (before_epoch != epoch) {
        const bool others = before_epoch && before_epoch < first_epoch_of_block;
        before = who | flags | (others ? OTHER_BLOCKS : before & OTHER_BLOCKS);
        before_epoch = epoch;
    } else if ((before ^ who) & THREAD & ~31u) {
        before |= SEVERAL_WARPS;
    } else if (before >> EPOCH_SHIFT != who >> EPOCH_SHIFT) {
        before = who | (before & (SEVERAL_WARPS | OTHER_BLOCKS | ATOMIC)) | flags;
    } else if ((before ^ who) & THREAD) {
        before |= SEVERAL_LANES;
    }
}

struct Access {
    const void* pc;
    u64 address;
    u32 n;
    const Region* region;
};

template <bool WRITES, bool IS_ATOMIC>
static inline void note(Accesses& last, const Access& access) {
    if (last.write_epoch && !is_ordered(last.write_epoch, last.writer) &&
        !(IS_ATOMIC && last.writer & ATOMIC)) {
        fail_race(access.pc, access.address, access.n, *access.region, WRITES, true,
                  last.write_epoch, last.writer);
    }
    if (!WRITES) {
        add(last.read_epoch, last.reader, 0);
        return;
    }
    if (last.read_epoch && !is_ordered(last.read_epoch, last.reader)) {
        fail_race(access.pc, access.address, access.n, *access.region, true, false,
                  last.read_epoch, last.reader);
    }
    if (IS_ATOMIC && last.writer & ATOMIC) {
        add(last.write_epoch, last.writer, ATOMIC);
    } else {
        last.write_epoch = epoch;
        last.writer = who | (IS_ATOMIC ? ATOMIC : 0);
    }
}

// Bytes from `first` up to `end` of a word.
template <bool WRITES, bool IS_ATOMIC>
static inline void note_word(u64 word, u32 first, u32 end, u32 tag, const Access& access) {
    const Shadow& shadow = *access.region->shadow;
    u32& now = shadow.tags[word];
    if (first == 0 && end == 4) {
        if (now == tag) {
            note<WRITES, IS_ATOMIC>(shadow.whole[word], access);
            return;
        }
        if (now != (tag | 1)) {
            now = tag;
            const u32 by = who | (IS_ATOMIC ? ATOMIC : 0);
            if (WRITES) {
                shadow.whole[word] = {epoch, by, 0, 0};
            } else {
                shadow.whole[word] = {0, 0, epoch, by};
            }
            return;
        }
    } else if (now != (tag | 1)) {
        const Accesses kept = now == tag ? shadow.whole[word] : Accesses{0, 0, 0, 0};
        for (int i = 0; i < 4; ++i) shadow.bytes[word * 4 + i] = kept;
        now = tag | 1;
    }
    for (u32 i = first; i < end; ++i) {
        note<WRITES, IS_ATOMIC>(shadow.bytes[word * 4 + i], access);
    }
}

static inline bool are_defined(const u8* states, u32 n) {
    if (n == 4) {
        u32 four;
        memcpy(&four, states, 4);
        return four == 0x01010101u;
    }
    for (u32 i = 0; i < n; ++i) {
        if (states[i] != DEFINED) return false;
    }
    return true;
}

template <bool WRITES>
__attribute__((noinline)) static const Region* find_region(const void* pc, u64 address, u32 n) {
    const Region*& last = WRITES ? last_written : last_read;
    for (u64 i = 0; i < n_regions; ++i) {
        const Region& region = regions[i];
        if (region.begin <= address && address + n <= region.end && (region.writes || !WRITES)) {
            return last = &region;
        }
    }
    if (!WRITES && launch->image <= address && address + n <= launch->image_end) return nullptr;
    fail_outside(pc, address, n, WRITES);
}

template <bool WRITES>
static inline const Region* region_of(const void* pc, u64 address, u32 n) {
    const Region* last = WRITES ? last_written : last_read;
    if (last->begin <= address && address + n <= last->end) return last;
    return find_region<WRITES>(pc, address, n);
}

template <bool WRITES, bool IS_ATOMIC = false>
__attribute__((always_inline)) static inline void check(
    const void* pc, const void* pointer, u32 n
) {
    const u64 address = (u64)pointer;
    if (address - stack_begin < stack_size || n == 0) return;
    const Region* region = region_of<WRITES>(pc, address, n);
    if (!region) return;  // a constant
    const Access access = {pc, address, n, region};
    const u64 at = address - region->shadow->begin;
    u8* states = region->shadow->states + at;
    if ((!WRITES || IS_ATOMIC) && !are_defined(states, n)) fail_undefined(pc, address, n, *region);
    if (WRITES) memset(states, DEFINED, n);
    const u32 tag = (region->is_shared ? block_tag : launch_tag) << 1;
    if (n % 4 == 0 && at % 4 == 0) {
        for (u64 word = at / 4; word < (at + n) / 4; ++word) {
            note_word<WRITES, IS_ATOMIC>(word, 0, 4, tag, access);
        }
        return;
    }
    for (u64 i = at; i < at + n;) {
        const u32 first = i % 4;
        const u32 end = at + n - i < 4 - first ? first + (u32)(at + n - i) : 4;
        note_word<WRITES, IS_ATOMIC>(i / 4, first, end, tag, access);
        i += end - first;
    }
}

static void check_read(const void* pc, const void* address, u32 n) { check<false>(pc, address, n); }
static void check_write(const void* pc, void* address, u32 n) { check<true>(pc, address, n); }

// Of bytes that the thread has written.
static void set_state(void* address, u32 n, State state) {
    const Region* region = region_of<true>(nullptr, (u64)address, n);
    memset(region->shadow->states + ((u64)address - region->shadow->begin), state, n);
}

EXPORTED void emulated_atomic(const void* address, int n) {
    check<true, true>(CALLED_FROM, address, n);
}

EXPORTED void emulated_after_blocks() { is_after_blocks = true; }

EXPORTED void emulated_copied(void* target, const void* source, size_t n) {
    check_read(CALLED_FROM, source, (u32)n);
    check_write(CALLED_FROM, target, (u32)n);
}

EXPORTED void emulated_filled(void* target, size_t n) { check_write(CALLED_FROM, target, (u32)n); }

// --- what the compilers call ---

static inline bool is_own(const void* address) { return (u64)address - stack_begin < stack_size; }

template <bool WRITES, u32 N>
__attribute__((noinline)) static void check_other(const void* address, const void* pc) {
    check<WRITES>(pc, address, N);
}

#define ON_ACCESS(name, WRITES, n) \
    EXPORTED void name(void* address) { \
        if (!is_own(address)) check_other<WRITES, n>(address, CALLED_FROM); \
    }
#define ON_BOTH(name, n) \
    EXPORTED void name(void* address) { \
        if (is_own(address)) return; \
        check_other<false, n>(address, CALLED_FROM); \
        check_other<true, n>(address, CALLED_FROM); \
    }
#define ON_ACCESSES(n) \
    ON_ACCESS(__tsan_read##n, false, n) \
    ON_ACCESS(__tsan_write##n, true, n) \
    ON_BOTH(__tsan_read_write##n, n) \
    ON_ACCESS(__tsan_volatile_read##n, false, n) \
    ON_ACCESS(__tsan_volatile_write##n, true, n) \
    ON_ACCESS(__tsan_unaligned_read##n, false, n) \
    ON_ACCESS(__tsan_unaligned_write##n, true, n) \
    ON_BOTH(__tsan_unaligned_read_write##n, n)
ON_ACCESSES(1)
ON_ACCESSES(2)
ON_ACCESSES(4)
ON_ACCESSES(8)
ON_ACCESSES(16)

EXPORTED void __tsan_read_range(void* address, u64 n) { check<false>(CALLED_FROM, address, n); }
EXPORTED void __tsan_write_range(void* address, u64 n) { check<true>(CALLED_FROM, address, n); }
EXPORTED void __tsan_init() {}
EXPORTED void __tsan_func_entry(void*) {}
EXPORTED void __tsan_func_exit() {}
EXPORTED void __tsan_vptr_update(void*, void*) {}
EXPORTED void __tsan_vptr_read(void*) {}
EXPORTED void* __tsan_memcpy(void* target, const void* source, u64 n) {
    check<false>(CALLED_FROM, source, n);
    check<true>(CALLED_FROM, target, n);
    return memcpy(target, source, n);
}
EXPORTED void* __tsan_memmove(void* target, const void* source, u64 n) {
    check<false>(CALLED_FROM, source, n);
    check<true>(CALLED_FROM, target, n);
    return memmove(target, source, n);
}
EXPORTED void* __tsan_memset(void* target, int value, u64 n) {
    check<true>(CALLED_FROM, target, n);
    return memset(target, value, n);
}

struct TypeMismatch {
    const char* file;
    u32 line, column;
    const void* type;
    u8 log_alignment;
};

EXPORTED void __ubsan_handle_type_mismatch_v1(const TypeMismatch* what, u64 address) {
    fail(CALLED_FROM, "misaligned: an access at 0x%llx, which is no multiple of %u",
         (unsigned long long)address, 1u << what->log_alignment);
}
EXPORTED void __ubsan_handle_out_of_bounds(const void*, u64 index) {
    fail(CALLED_FROM, "out of bounds: index %lld of an array", (long long)index);
}
EXPORTED void __ubsan_handle_divrem_overflow(const void*, u64, u64) {
    fail(CALLED_FROM, "an integer is divided by 0");
}
