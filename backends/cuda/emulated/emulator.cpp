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

// Memory of which pages are taken as they are used: small ones, since few bytes of many are.
static void* reserve(u64 n_bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* found = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (found != MAP_FAILED) madvise(found, n_bytes, MADV_NOHUGEPAGE);
    return found;
}

#include "fibers.hpp"
#include "barriers.hpp"
#include "checks.hpp"
#include "async.hpp"
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
    is_after_blocks = false;
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
