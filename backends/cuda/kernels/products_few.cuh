// Products of few columns: bound by the bandwidth of weights, which are read once for 8 columns.
//
//   grid  x: blocks of 16 rows, of one part after another; y, z: matrices
//
// Each warp of a block sums a slice of the same 16 rows, with copies of the next chunk under way; the
// slices are added in shared memory. The first copies of weights start before the launch that x comes
// from is complete.
#pragma once
#include "products.cuh"

constexpr int FEW_STAGES = 2;  // one chunk is multiplied, and one copied

// Starts the copies of a chunk of columns by a warp: lane (g, t) has a part of column g.
template <class P>
__device__ void load_few_columns(char* shared, const char* column_g, int n, int chunk, Lane lane) {
    if (lane.g >= n) return;
    const char* from = column_g + chunk * (i64_t)P::X_BYTES + lane.t * 16;
    const SharedAddress to = to_shared(shared) + lane.g * P::FEW_PITCH + lane.t * 16;
#pragma unroll
    for (int at = 0; at < P::X_BYTES; at += 64) {
        if (at + lane.t * 16 < P::X_BYTES) copy_async_16(to + at, from + at);
    }
}

template <class P>
__device__ void multiply_few(const ProductArgs& args, const Run& run) {
    DYNAMIC_SHARED(char, shared);
    if (!args.are_weights) after_launches_before();
    const RowGroup group(args, blockIdx.x);
    const Tensor& weight = args.weight[group.part];
    const int m = weight.ne[1].at(run), k = weight.ne[0].at(run);
    const int index = blockIdx.y + blockIdx.z * gridDim.y, first_row = group.first_row;
    const Matrix matrix = Matrix::of_product(args, weight, index, run);
    const int n = matrix.n;
    if (n <= 0 || first_row >= m) {
        if (args.are_weights) after_launches_before();
        return;
    }

    // This warp's slice: chunks of the weights, and with two weights of both in turn.
    const Lane lane;
    const int warp = threadIdx.x / 32;
    const int n_chunks = (k + P::CHUNK - 1) / P::CHUNK;
    const bool has_slice = warp < n_slices(n_chunks);
    const Slice slice = has_slice ? slice_of(warp, n_chunks) : Slice{0, 0};
    const int has_up = args.up.data ? 1 : 0;
    const int length = slice.end - slice.begin, total = length << has_up;
    const typename P::Rows rows = TwoRows(weight, matrix.weight, first_row, lane.g, run);
    const i64_t to_up = args.up.data - weight.data;
    const char* column_g =
        column_of_x(args, matrix, min(lane.g, n - 1), run);

    // Shared memory of the warp: stages of rows and of columns.
    const int x_bytes = FEW_STAGES * args.columns * P::FEW_PITCH;
    char* of_rows = shared + warp * (FEW_STAGES * P::WARP_BYTES + x_bytes);
    char* of_x = of_rows + FEW_STAGES * P::WARP_BYTES;
    const auto load_weights = [&](int i) {
        if (i >= total) return;
        const bool is_up = has_up & i;
        char* to = of_rows + (i & 1) * P::WARP_BYTES;
        const int chunk = slice.begin + (i >> has_up);
        P::load_rows(to, rows, is_up ? to_up : 0, chunk, k, args.is_aligned, lane);
    };
    const auto load_x = [&](int i) {
        if (i >= total || has_up & i) return;
        const int in_slice = i >> has_up;
        char* stage = of_x + (in_slice & 1) * args.columns * P::FEW_PITCH;
        load_few_columns<P>(stage, column_g, n, slice.begin + in_slice, lane);
    };
    float sums[1][4] = {}, other[1][4] = {};  // of the weights in turn
    load_weights(0);
    if (args.are_weights) after_launches_before();
    load_x(0);
    copy_async_commit();
    for (int i = 0; i < total; ++i) {
        copy_async_wait<0>();
        __syncwarp();  // and the stage before this one is free
        load_weights(i + 1);
        load_x(i + 1);
        copy_async_commit();
        const int in_slice = i >> has_up, chunk = slice.begin + in_slice;
        const char* x = of_x + (in_slice & 1) * args.columns * P::FEW_PITCH;
        P::multiply_few(sums, of_rows + (i & 1) * P::WARP_BYTES, x, n, rows, chunk, k, lane);
        if (has_up) {
            for (int j = 0; j < 4; ++j) {
                const float sum = sums[0][j];
                sums[0][j] = other[0][j];
                other[0][j] = sum;
            }
        }
    }

    // Sums of slices: [weight][warp][column][row]
    __syncthreads();
    float* partial = (float*)shared;
    constexpr int TILE = COLUMNS * WARP_ROWS;
    for (int i = 0; i < 2; ++i) {
        float* of_warp = partial + (i * WARPS + warp) * TILE;
        for (int j = 0; j < 4; ++j) {
            const float sum = i == 0 ? sums[0][j] : other[0][j];
            of_warp[(lane.t * 2 + j % 2) * WARP_ROWS + lane.g + j / 2 * 8] = sum;
        }
    }
    __syncthreads();
    const int row = threadIdx.x % WARP_ROWS, column = threadIdx.x / WARP_ROWS;
    if (column >= n || first_row + row >= m) return;
    float both[2];
    for (int i = 0; i < 2; ++i) {
        const float* at = partial + i * WARPS * TILE + threadIdx.x;
        both[i] = at[0];
        for (int j = 1; j < n_slices(n_chunks); ++j) both[i] += at[j * TILE];
    }
    float* y = column_of_y(args, matrix, column, run, group.part);
    y[first_row + row] = finished(args, both[0], both[1], first_row + row, group.part);
}
