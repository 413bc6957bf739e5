// Part of emulator.cpp: threads as fibers, the block that runs, who runs next.
#pragma once

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
    AsyncCopy* copies;
    u32 n_copies, max_copies;
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
static bool is_after_blocks;  // whether those before the running one are ordered with it
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
        f.n_copies = 0;
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
