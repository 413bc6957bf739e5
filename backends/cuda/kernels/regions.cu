// A tensor with a region changed: b added to it, or in its place. Bandwidth-bound.
//   a, y  without gaps    b  any strides
//   first y = a, 16 bytes a thread; then an element of b a thread
#include "elementwise.cuh"

constexpr int THREADS = 256;
constexpr int MOVED = 16;  // bytes of a thread of `whole`

__device__ static void move(char* y, const char* x, int size) {
    switch (size) {
        case 1: *(u8_t*)y = *(const u8_t*)x; break;
        case 2: *(u16_t*)y = *(const u16_t*)x; break;
        case 4: *(u32_t*)y = *(const u32_t*)x; break;
        default: *(i64_t*)y = *(const i64_t*)x;
    }
}

struct WholeArgs {
    Tensor y;
    Tensor a;
    int size;  // bytes of an element
};

// y = a
KERNEL(whole, WholeArgs, THREADS) {
    const i64_t at = ((i64_t)blockIdx.x * THREADS + threadIdx.x) * MOVED;
    const i64_t n = min((i64_t)MOVED, args.y.n_elements(run) * args.size - at);
    char* y = args.y.data + at;
    const char* a = args.a.data + at;
    if (n == MOVED && ((unsigned long long)y | (unsigned long long)a) % MOVED == 0) {
        *(uint4*)y = *(const uint4*)a;
    } else {
        for (int i = 0; i < n; i += args.size) move(y + i, a + i, args.size);
    }
}

struct RegionArgs {
    Tensor y;
    Tensor a;
    Tensor b;
    i64_t nb1;  // strides of the region in bytes, and where it begins
    i64_t nb2;
    i64_t nb3;
    i64_t offset;
    int size;
    int adds;  // f32
};

// the region of y = b, or that of a + b
KERNEL(region, RegionArgs, THREADS) {
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= args.b.n_elements(run)) return;
    const Quotient column = divided(i, args.b.ne[0].at(run));
    const Row row = fast_row_of(args.b, column.whole, run);
    const char* b = args.b.at(column.rest, row.i1, row.i2, row.i3);
    const i64_t at = args.offset + column.rest * args.size + row.i1 * args.nb1 +
                     row.i2 * args.nb2 + row.i3 * args.nb3;
    if (args.adds) {
        f32::store(args.y.data + at, 0, f32::load(args.a.data + at, 0) + f32::load(b, 0));
    } else {
        move(args.y.data + at, b, args.size);
    }
}
