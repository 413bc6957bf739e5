// The runtime of emulated kernels: threads of a block are fibers, blocks run one after another.
//
// A fiber runs until it waits at a barrier or an exchange, and then passes to the next one that can
// run. Who arrives last releases the others and goes on. The order of blocks and threads is shuffled.
// A mistake of the kernel ends the launch: its fiber passes to the caller and none is resumed.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <link.h>
#include <sys/mman.h>

#if !defined(__x86_64__) && !defined(EMULATED_UCONTEXT)
#define EMULATED_UCONTEXT
#endif
#ifdef EMULATED_UCONTEXT
#include <ucontext.h>
#endif

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct Index3 {
    u32 x, y, z;
};
struct EmulatedIndices {
    Index3 thread, block, block_dim, grid_dim;
};
extern "C" {
__attribute__((visibility("default"))) EmulatedIndices emulated_indices;  // of the thread that runs
}

// What runtime.py calls with, and what it gets.
struct Range {
    u64 begin, end;
    const char* what;
    u64 writes;
};
typedef void (*Entry)(const void* args, const void* run);
struct Launch {
    Entry entry;
    const void* args;
    const void* run;
    u32 grid[3];
    u32 block[3];
    u32 shared_bytes;
    u32 seed;
    u64 image, image_end;    // of the unit; its variables without a value are shared memory
    u64 shared, shared_end;
    u64 device, device_bytes;  // as reserved
    const Range* ranges;     // of the device's memory that it may access
    u64 n_ranges;
};
struct Error {
    u64 pc;  // where it was found, from the unit's image on, or 0
    u32 block[3];
    u32 thread[3];
    char text[512];  // empty if there was no error
};

constexpr u32 MAX_THREADS = 1024;
constexpr u32 MAX_SHARED = 227 << 10;
constexpr size_t STACK_BYTES = 256 << 10;
// Tops of stacks at different places of pages, else they would share a few lines of the caches.
constexpr size_t STACK_STRIDE = STACK_BYTES + 64 * 9;

// Memory of which pages are taken as they are used.
static void* reserve(u64 n_bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

// --- contexts ---

#ifdef EMULATED_UCONTEXT
typedef ucontext_t Context;
static void pass(Context* from, Context* to) { swapcontext(from, to); }
#else
typedef void* Context;  // the stack pointer, on whose stack the other registers are
extern "C" void emulated_pass(void** from, void* to);
asm(R"(
    .text
    .type emulated_pass, @function
emulated_pass:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_pass, .-emulated_pass
)");
static inline void pass(Context* from, Context* to) { emulated_pass(from, *to); }
#endif

// --- the state of the block that runs ---

enum class Op : u8 { NONE, BARRIER, SHUFFLE, BALLOT, MMA, LDMATRIX };
constexpr int N_OPS = 6;
static const char* const OP_NAMES[] = {
    "", "__syncwarp", "a shuffle", "a vote", "mma", "ldmatrix",
};

struct AsyncCopy {
    void* shared;
    const void* global;
    int n_bytes;
    int n_valid;
    u32 group;
};

struct Fiber {
    Context context;
    char* stack;  // its lowest address
    Index3 index;
    u32 linear;
    // what it gives to the exchange that it waits at, and what it gets
    u64 value;
    int source;
    const void* waits_at;
    // asynchronous copies that it has started, and how many groups it has committed
    std::vector<AsyncCopy> copies;
    u32 n_groups;
};

// Lanes that wait for others of one mask. Masks of a warp are disjoint, so the lowest lane names one.
struct Group {
    u32 mask;
    u32 arrived;
    Op op;
};
struct Warp {
    Group groups[32];
    u32 epoch;  // how often lanes have met at __syncwarp
    u32 n_waiting;
    u32 exists;
    u32 ended;
};

static Fiber fibers[MAX_THREADS];
static Warp warps[MAX_THREADS / 32];
static Fiber* self;  // who runs
static Context caller;
static const Launch* launch;
static Error* error;

static u32 n_threads, n_started, n_ended;
static u32 order[MAX_THREADS];        // in which threads start
static Fiber* ready[MAX_THREADS];     // a ring of those that can go on
static u32 ready_first, n_ready;
static Fiber* at_barrier[MAX_THREADS];
static u32 n_at_barrier;
static int barrier_sum, barrier_result;
alignas(1024) static u8 dynamic_shared[MAX_SHARED];

// What the checks of accesses must know of the running thread.
static u64 stack_begin = 0, stack_size = ~0ull;  // outside of launches nothing is checked
static u32 who;  // see checks.hpp
// Counts the stretches of a launch between barriers, of one block after another.
static u32 epoch, first_epoch_of_block;
static u32 launch_tag, block_tag;

static u64 random_state;
static u32 random_below(u32 n) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)(((random_state >> 32) * n) >> 32);
}

[[noreturn]] static void abandon() {
    Context dead;
    pass(&dead, &caller);
    abort();
}

// Ends the launch with an error of the running thread.
[[noreturn]] __attribute__((format(printf, 2, 3))) static void fail(
    const void* pc, const char* format, ...
) {
    va_list values;
    va_start(values, format);
    vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    const EmulatedIndices& now = emulated_indices;
    error->pc = pc ? (u64)pc - launch->image : 0;
    memcpy(error->block, &now.block, sizeof now.block);
    memcpy(error->thread, &now.thread, sizeof now.thread);
    abandon();
}
#define CALLED_FROM __builtin_return_address(0)

// --- scheduling ---

static void body() {
    launch->entry(launch->args, launch->run);
}

static void ended();

#ifdef EMULATED_UCONTEXT
static void first() {
    body();
    ended();
}
static void prepare(Fiber& f) {
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK_BYTES;
    f.context.uc_link = nullptr;
    makecontext(&f.context, first, 0);
}
#else
[[noreturn]] static void first() {
    body();
    ended();
    abort();
}
static void prepare(Fiber& f) {
    void** top = (void**)(((uintptr_t)f.stack + STACK_BYTES) & ~(uintptr_t)15);
    *--top = nullptr;  // as if `first` had been called: it finds the stack aligned
    *--top = (void*)first;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    f.context = top;
}
#endif

static Fiber* next() {
    if (n_ready) {
        Fiber* f = ready[ready_first];
        ready_first = (ready_first + 1) % MAX_THREADS;
        --n_ready;
        return f;
    }
    if (n_started < n_threads) {
        Fiber& f = fibers[order[n_started++]];
        f.copies.clear();
        f.n_groups = 0;
        prepare(f);
        return &f;
    }
    return nullptr;
}

static void make_ready(Fiber* f) { ready[(ready_first + n_ready++) % MAX_THREADS] = f; }

static inline u32 who_is(const Fiber* f) {
    return f->linear | (warps[f->linear / 32].epoch & 0xffff) << 16;
}

static inline void run(Fiber* f) {
    self = f;
    emulated_indices.thread = f->index;
    stack_begin = (u64)f->stack;
    who = who_is(f);
}

[[noreturn]] static void stuck() {
    u32 lanes[N_OPS] = {};
    const void* pc = n_at_barrier ? at_barrier[0]->waits_at : nullptr;
    for (u32 w = 0; w * 32 < n_threads; ++w) {
        for (const Group& group : warps[w].groups) {
            if (!group.arrived) continue;
            lanes[(int)group.op] += __builtin_popcount(group.arrived);
            pc = fibers[w * 32 + __builtin_ctz(group.arrived)].waits_at;
        }
    }
    char text[256];
    int n = 0;
    if (n_at_barrier) {
        n += snprintf(text + n, sizeof text - n, ", %u wait at __syncthreads", n_at_barrier);
    }
    for (int op = 1; op < N_OPS; ++op) {
        if (lanes[op]) {
            n += snprintf(text + n, sizeof text - n, ", %u wait at %s", lanes[op], OP_NAMES[op]);
        }
    }
    fail(pc, "threads of the block wait at different places%s", text);
}

static void wait_for_others(const void* pc) {
    Fiber* from = self;
    from->waits_at = pc;
    Fiber* to = next();
    if (!to) stuck();
    run(to);
    pass(&from->context, &to->context);
}

static void ended() {
    Warp& warp = warps[self->linear / 32];
    const u32 bit = 1u << self->linear % 32;
    if (n_at_barrier) {
        fail(at_barrier[0]->waits_at, "the thread ends while %u threads wait at __syncthreads",
             n_at_barrier);
    }
    if (warp.n_waiting) {
        for (const Group& group : warp.groups) {
            if (group.arrived && group.mask & bit) {
                fail(self[(int)__builtin_ctz(group.arrived) - (int)(self->linear % 32)].waits_at,
                     "the thread ends while lanes of its warp wait for it at %s",
                     OP_NAMES[(int)group.op]);
            }
        }
    }
    warp.ended |= bit;
    ++n_ended;
    Fiber* from = self;
    Fiber* to = next();
    if (!to) {
        if (n_ended < n_threads) stuck();
        pass(&from->context, &caller);
    }
    run(to);
    pass(&from->context, &to->context);
}

// --- barriers ---

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

#include "checks.hpp"

// --- asynchronous copies ---

EXPORTED void emulated_async_copy(void* shared, const void* global, int n_bytes, int n_valid) {
    const void* pc = CALLED_FROM;
    if ((uintptr_t)shared % n_bytes || (n_valid && (uintptr_t)global % n_bytes)) {
        fail(pc, "an asynchronous copy of %d bytes to %p from %p, which is not aligned", n_bytes,
             shared, global);
    }
    if (n_valid) check_read(pc, global, n_valid);
    check_write(pc, shared, n_bytes);
    set_state(shared, n_bytes, BEING_COPIED);
    self->copies.push_back({shared, global, n_bytes, n_valid, self->n_groups});
}

EXPORTED void emulated_async_commit() { ++self->n_groups; }

EXPORTED void emulated_async_wait(int n_groups) {
    const void* pc = CALLED_FROM;
    Fiber* me = self;
    size_t n = 0;
    for (; n < me->copies.size(); ++n) {
        const AsyncCopy& copy = me->copies[n];
        if (copy.group + n_groups >= me->n_groups) break;
        check_write(pc, copy.shared, copy.n_bytes);
        memset(copy.shared, 0, copy.n_bytes);
        memcpy(copy.shared, copy.global, copy.n_valid);
    }
    me->copies.erase(me->copies.begin(), me->copies.begin() + n);
}

#include "matrices.hpp"


// --- launches ---

static bool make_stacks() {
    static char* stacks = nullptr;
    if (stacks) return true;
    void* found = reserve(STACK_STRIDE * MAX_THREADS);
    if (found == MAP_FAILED) return false;
    stacks = (char*)found;
    for (u32 i = 0; i < MAX_THREADS; ++i) fibers[i].stack = stacks + i * STACK_STRIDE;
    return true;
}

static void shuffle(u32* first, u32 n) {
    for (u32 i = n; i > 1; --i) {
        const u32 j = random_below(i);
        const u32 kept = first[i - 1];
        first[i - 1] = first[j];
        first[j] = kept;
    }
}

// Warps in any order, and the lanes of each in any order.
static void choose_order() {
    u32 warp_order[MAX_THREADS / 32];
    const u32 n_warps = (n_threads + 31) / 32;
    for (u32 i = 0; i < n_warps; ++i) warp_order[i] = i;
    shuffle(warp_order, n_warps);
    u32 n = 0;
    for (u32 i = 0; i < n_warps; ++i) {
        const u32 first = n;
        for (u32 t = warp_order[i] * 32; t < n_threads && t < warp_order[i] * 32 + 32; ++t) {
            order[n++] = t;
        }
        shuffle(order + first, n - first);
    }
}

static void run_block() {
    n_started = n_ended = n_ready = ready_first = n_at_barrier = 0;
    barrier_sum = 0;
    for (u32 w = 0; w * 32 < n_threads; ++w) warps[w].ended = 0;
    first_epoch_of_block = ++epoch;
    forget_shared_memory();
    choose_order();
    Fiber* f = next();
    run(f);
    pass(&caller, &f->context);
}

static u64 common_divisor(u64 a, u64 b) { return b ? common_divisor(b, a % b) : a; }

// Addresses of a device's memory, which its shadow follows; 0 if there are none.
EXPORTED u64 emulated_reserve(u64 n_bytes) {
    void* found = reserve(n_bytes * (1 + SHADOW_BYTES));
    return found == MAP_FAILED ? 0 : (u64)found;
}

EXPORTED void emulated_release(u64 address, u64 n_bytes) {
    munmap((void*)address, n_bytes * (1 + SHADOW_BYTES));
}

// Where the image of a unit lies that a kernel is of, and its variables without a value.
struct Image {
    u64 inside;
    u64 begin, end, zeros, zeros_end;
};

static int find_image(dl_phdr_info* info, size_t, void* found_in) {
    Image& image = *(Image*)found_in;
    Image here = {image.inside, info->dlpi_addr, info->dlpi_addr, 0, 0};
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& part = info->dlpi_phdr[i];
        const u64 begin = info->dlpi_addr + part.p_vaddr;
        if (part.p_type != PT_LOAD) continue;
        here.end = begin + part.p_memsz;
        if (part.p_flags & PF_W) {
            here.zeros = begin + part.p_filesz;
            here.zeros_end = here.end;
        }
    }
    if (image.inside < here.begin || image.inside >= here.end) return 0;
    image = here;
    return 1;
}

EXPORTED void emulated_image(Image* image) { dl_iterate_phdr(find_image, image); }

EXPORTED int emulated_launch(const Launch* what, Error* result) {
    if (!make_stacks()) return 1;
    launch = what;
    error = result;
    if (!make_shadows()) return 1;
    ++launch_tag;
    epoch = 0;
    error->text[0] = 0;
    random_state = what->seed * 2654435761ull + 1;
    const u32 *grid = what->grid, *block = what->block;
    emulated_indices.grid_dim = {grid[0], grid[1], grid[2]};
    emulated_indices.block_dim = {block[0], block[1], block[2]};
    n_threads = block[0] * block[1] * block[2];
    for (u32 i = 0; i < n_threads; ++i) {
        fibers[i].linear = i;
        fibers[i].index = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
    }
    memset(warps, 0, sizeof warps);
    for (u32 w = 0; w * 32 < n_threads; ++w) {
        const u32 n = n_threads - w * 32;
        warps[w].exists = n < 32 ? (1u << n) - 1 : ~0u;
    }
    stack_size = STACK_BYTES;
    // i * step + from is another order of the blocks if step and their number have no common divisor
    const u64 n_blocks = (u64)grid[0] * grid[1] * grid[2];
    u64 step = 1 + random_below((u32)(n_blocks < 1000000 ? n_blocks : 1000000));
    while (common_divisor(step, n_blocks) != 1) ++step;
    const u64 from = random_below((u32)(n_blocks < ~0u ? n_blocks : ~0u));
    for (u64 i = 0; i < n_blocks && !error->text[0]; ++i) {
        const u64 b = (i * step + from) % n_blocks;
        emulated_indices.block = {
            (u32)(b % grid[0]), (u32)(b / grid[0] % grid[1]), (u32)(b / ((u64)grid[0] * grid[1]))
        };
        run_block();
    }
    stack_begin = 0;
    stack_size = ~0ull;
    return 0;
}
