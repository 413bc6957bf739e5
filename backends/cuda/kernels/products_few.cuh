// Products of few columns: bound by the bandwidth of weights, which are read once for 8 columns.
//
//   grid  x: blocks of 16 rows; y, z: blocks of 8 columns, times matrices (of mul_mat_id: a column each)
//
// Each warp of a block sums a slice of the same 16 rows, with copies of the next chunk under way; the
// slices are added in shared memory. Each block may round x itself, of one column: that takes less time
// than a launch before this one.
#pragma once
#include "products.cuh"

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
    const int row_block = blockIdx.x;
    int index = blockIdx.y + blockIdx.z * gridDim.y, first_column = 0;
    if (args.n_column_blocks > 1) {
        first_column = index % args.n_column_blocks * COLUMNS;
        index /= args.n_column_blocks;
    }
    const int m = args.weight.ne[1].at(run), k = args.weight.ne[0].at(run);
    const int first_row = row_block * WARP_ROWS;

    Matrix matrix;
    if (args.ids.data) {
        if (index >= args.ids.ne[0].at(run) * args.ids.ne[1].at(run)) return;
        const int id = id_of(args.ids, index, run);
        if (!is_expert(args, id, run)) {
            if (row_block == 0 && threadIdx.x == 0) fail(run, id);
            return;
        }
        first_column = index;
        matrix = {id * args.weight.nb[2], index + 1, 0, 0};
    } else {
        matrix = Matrix::of_product(args, index, run);
    }
    const int n = min((int)COLUMNS, matrix.n - first_column);
    if (n <= 0 || first_row >= m) return;

    // Chunks of this warp: of the weights' slice, then of those of `up`.
    const Lane lane;
    const int warp = threadIdx.x / 32;
    const int n_chunks = (k + P::CHUNK - 1) / P::CHUNK;
    const bool has_slice = warp < n_slices(n_chunks);
    const Slice slice = has_slice ? slice_of(warp, n_chunks) : Slice{0, 0};
    const int n_weights = args.up.data ? 2 : 1;
    const int length = slice.end - slice.begin, total = n_weights * length;
    const TwoRows rows(args.weight, matrix.weight, args.weight_bytes, first_row, lane.g, run);
    const i64_t to_up = args.up.data - args.weight.data;

    const char* column_g =
        column_of_x(args, matrix, first_column + min(lane.g, n - 1), run);

    // Shared memory of the warp: stages of rows and columns, or the column's slice behind all stages.
    const int columns_bytes = args.rounds_x ? 0 : args.columns * P::FEW_PITCH;
    const int stage_bytes = P::WARP_BYTES + columns_bytes;
    char* stages = shared + warp * STAGES * stage_bytes;
    char* rounded = shared + WARPS * STAGES * stage_bytes + warp * args.slice_chunks * P::X_BYTES;
    const auto load = [&](int i) {
        if (i < total) {
            char* stage = stages + i % STAGES * stage_bytes;
            const int chunk = slice.begin + (i < length ? i : i - length);
            const TwoRows of_chunk = rows.moved(i < length ? 0 : to_up);
            P::load_rows(stage, of_chunk, chunk, k, args.is_aligned, lane);
            if (!args.rounds_x) {
                load_few_columns<P>(stage + P::WARP_BYTES, column_g, n, chunk, lane);
            }
        }
        copy_async_commit();
    };
    float sums[2][4] = {};  // of both weights
    float acc[1][4] = {};
    for (int i = -1; i < total; ++i) {
        load(i + 1);
        if (i < 0) {
            for (int j = 0; args.rounds_x && j < length; ++j) {
                const int first = (slice.begin + j) * P::CHUNK;
                P::round_x(rounded + j * P::X_BYTES, (const float*)column_g + first, k - first, lane);
            }
            continue;
        }
        copy_async_wait<STAGES - 1>();
        __syncwarp();
        const char* stage = stages + i % STAGES * stage_bytes;
        const int in_slice = i < length ? i : i - length;
        P::multiply_few(
            acc, stage, args.rounds_x ? rounded + in_slice * P::X_BYTES : stage + P::WARP_BYTES, n,
            rows.moved(i < length ? 0 : to_up), slice.begin + in_slice, k, lane
        );
        __syncwarp();
        if (i == length - 1) {
            for (int j = 0; j < 4; ++j) {
                sums[0][j] = acc[0][j];
                acc[0][j] = 0.0f;
            }
        }
    }
    for (int j = 0; j < 4; ++j) sums[1][j] = acc[0][j];

    // Sums of slices: [weight][warp][column][row]
    copy_async_wait<0>();
    __syncthreads();
    float* partial = (float*)shared;
    constexpr int TILE = COLUMNS * WARP_ROWS;
    for (int i = 0; i < 2; ++i) {
        float* of_warp = partial + (i * WARPS + warp) * TILE;
        for (int j = 0; j < 4; ++j) {
            of_warp[(lane.t * 2 + j % 2) * WARP_ROWS + lane.g + j / 2 * 8] = sums[i][j];
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
    float* y = column_of_y(args, matrix, first_column + column, run);
    y[first_row + row] = finished(args, both[0], both[1], first_row + row);
}
