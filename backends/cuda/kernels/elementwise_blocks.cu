// y = a + b for a of a quantised type: a as f32, b added, and quantised again.
//   a, y  rows of blocks, rows of any strides    b  f32, any strides, repeated to the shape of a
//   grid: a warp for each block of 32 elements
#include "elementwise.cuh"
#include "quantize.cuh"
#include "quants.cuh"

constexpr int THREADS = 256;

struct Args {
    Tensor y;
    Tensor a;
    Tensor b;
    int type;
};

__device__ static float load_quantized(int type, const char* row, i64_t i) {
    switch (type) {
        case TYPE_Q4_0: return q4_0::load(row, i);
        case TYPE_Q4_1: return q4_1::load(row, i);
        case TYPE_Q5_0: return q5_0::load(row, i);
        case TYPE_Q5_1: return q5_1::load(row, i);
        case TYPE_Q8_0: return q8_0::load(row, i);
        default: return iq4_nl::load(row, i);
    }
}

KERNEL(add_to_blocks, Args, THREADS) {
    const int per_row = args.y.ne[0].at(run) / QUANTIZED_BLOCK;
    const i64_t warp = ((i64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (warp >= per_row * args.y.n_rows(run)) return;
    const Quotient block = divided(warp, per_row);
    const Row row = fast_row_of(args.y, block.whole, run);
    const int i = (int)block.rest * QUANTIZED_BLOCK + threadIdx.x % 32;
    const char* b = repeated_at(args.b, row, run) + i % args.b.ne[0].at(run) * args.b.nb[0];
    const float a = load_quantized(args.type, args.a.at(row.i1, row.i2, row.i3), i);
    char* y = args.y.at(row.i1, row.i2, row.i3) + block.rest * block_bytes(args.type);
    __syncwarp();  // y may be the memory of a
    quantize_block(args.type, a + f32::load(b, 0), y);
}
