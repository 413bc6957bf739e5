// Floats to blocks of quantised types: copies, and rows scattered by indices.
//   grid  a warp for each block of 32 elements; bandwidth-bound
#include "copy_elements.cuh"
#include "quantize.cuh"
#include "set_rows.cuh"

struct QuantizeArgs {
    Tensor y;  // in blocks
    Tensor x;  // of y's loops, if it has them (copy_loops.py); then `step` is that between elements
    i64_t step;
    int together;
    int y_type;
    int x_type;
};

KERNEL(quantize, QuantizeArgs, COPY_THREADS) {
    const Tensor &y = args.y, &x = args.x;
    const i64_t i = thread_index() / 32;
    const int lane = threadIdx.x % 32;
    if (i >= y.n_elements(run)) return;
    const char* from = args.together ? element_at(x, i, run) + lane * args.step
                                     : element_at(x, i * QUANTIZED_BLOCK + lane, run);
    quantize_block(args.y_type, load_one(args.x_type, from), element_at(y, i, run));
}

struct WriteBlock {
    static constexpr int LANES = 32;

    __device__ static void write(
        const SetArgs& args, const char* x, char* y, int block, const Run& run
    ) {
        const i64_t i = (i64_t)block * QUANTIZED_BLOCK + threadIdx.x % 32;
        const float v = load_one(args.x_type, x + i * size_of(args.x_type));
        quantize_block(args.y_type, v, y + (i64_t)block * block_bytes(args.y_type));
    }
};

__device__ inline int blocks_of_row(const SetArgs& args, const Run& run) {
    return args.x.ne[0].at(run) / QUANTIZED_BLOCK;
}

KERNEL(set_rows_few, SetArgs, SET_THREADS) {
    set_few<WriteBlock>(args, blocks_of_row(args, run), run);
}

KERNEL(set_rows_owned, SetArgs, SET_THREADS) {
    set_owned<WriteBlock>(args, blocks_of_row(args, run), run);
}
