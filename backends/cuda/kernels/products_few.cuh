// Products of few columns: bound by the bandwidth of weights, which are read once for 8 columns.
//
//   grid  x: blocks of 16 rows, times blocks of 8 columns, times matrices (of mul_mat_id: one column each)
//
// Each warp of a block sums a slice of the same 16 rows, with copies of the next chunk under way; the
// slices are added in shared memory.
#pragma once
#include "products.cuh"

constexpr int FEW_STAGES = 2;

// Starts the copies of a chunk of columns, by a warp.
template <class P, class ColumnOfX>
__device__ void load_few_columns(
    char* shared, int n, int columns, int chunk, ColumnOfX column_of_x
) {
    for (int i = threadIdx.x % 32; i < n * P::PIECES; i += 32) {
        const int column = i / P::PIECES, piece = i % P::PIECES;
        const char* from = column_of_x(column) + (i64_t)chunk * P::X_BYTES + piece * 16;
        copy_async_16(shared + P::place(column, piece, columns), from);
    }
}

template <class P>
__device__ void multiply_few(const ProductArgs& args, const Run& run) {
    DYNAMIC_SHARED(char, shared);
    const int row_block = blockIdx.x % args.n_row_blocks;
    const int rest = blockIdx.x / args.n_row_blocks;
    int first_column = rest % args.n_column_blocks * COLUMNS;
    const int index = rest / args.n_column_blocks;
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

    const int stage_bytes = P::WARP_BYTES + args.columns * P::COLUMN_BYTES;
    char* stages = shared + warp * FEW_STAGES * stage_bytes;
    const auto load = [&](int i) {
        if (i < total) {
            char* stage = stages + i % FEW_STAGES * stage_bytes;
            const int chunk = slice.begin + (i < length ? i : i - length);
            const TwoRows of_chunk = rows.moved(i < length ? 0 : to_up);
            P::load_rows(stage, of_chunk, chunk, k, args.is_aligned, lane);
            load_few_columns<P>(stage + P::WARP_BYTES, n, args.columns, chunk, [&](int column) {
                return column_of_x(args, matrix, first_column + column, run);
            });
        }
        copy_async_commit();
    };
    float sums[2][4] = {};  // of both weights
    float acc[1][4] = {};
    for (int i = 0; i < FEW_STAGES - 1; ++i) load(i);
    for (int i = 0; i < total; ++i) {
        load(i + FEW_STAGES - 1);
        copy_async_wait<FEW_STAGES - 1>();
        __syncwarp();
        const char* stage = stages + i % FEW_STAGES * stage_bytes;
        const int chunk = slice.begin + (i < length ? i : i - length);
        P::template multiply<1>(
            acc, stage, stage + P::WARP_BYTES, args.columns, n, rows.moved(i < length ? 0 : to_up),
            chunk, k, lane
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
