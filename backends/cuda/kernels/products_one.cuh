// Products of one column: decoding one sequence, and the experts of a token.
//
//   grid  x: blocks, which take groups of 16 rows in turns, of one part after another;
//         y, z: matrices (of mul_mat_id: columns)
//
// Each warp of a block sums a slice of the same 16 rows, with copies of the next chunk under way, those
// of the next group's too. The slices are added in shared memory. The block has x rounded once, for all
// of its groups: by itself, where that takes less time than a launch before this one. The first copies
// of weights start before the launch that x comes from is complete.
#pragma once
#include "products.cuh"

constexpr int ONE_STAGES = 2;

// The column of a block: its weights' place, its row of x, where y is.
struct OneColumn {
    Matrix matrix;
    int column;
    bool exists;

    __device__ OneColumn(const ProductArgs& args, const Run& run) : matrix{0, 0, 0, 0}, column(0) {
        const int index = blockIdx.y + blockIdx.z * gridDim.y;
        exists = true;
        if (args.ids.data) {
            exists = index < args.ids.ne[0].at(run) * args.ids.ne[1].at(run);
            const int id = exists ? id_of(args.ids, index, run) : 0;
            if (exists && !is_expert(args, id, run)) {
                if (blockIdx.x == 0 && threadIdx.x == 0) fail(run, id);
                exists = false;
            }
            matrix.weight = id * args.weight[0].nb[2];
            column = index;
        } else if (index > 0) {
            matrix = Matrix::of_product(args, args.weight[0], index, run);
            exists = matrix.n > 0;
        }
    }
};

template <class P>
__device__ void multiply_one(const ProductArgs& args, const Run& run) {
    DYNAMIC_SHARED(char, shared);
    __shared__ float partial[2][WARPS][WARP_ROWS];  // of weights and slices
    const bool is_ahead = args.are_weights && !args.ids.data;
    if (!is_ahead) after_launches_before();
    const OneColumn of(args, run);
    if (!of.exists) {
        if (is_ahead) after_launches_before();
        return;
    }

    // This warp's slice: chunks of the weights, and with two weights of both in turn.
    const Lane lane;
    const int warp = threadIdx.x / 32, k = args.weight[0].ne[0].at(run);
    const int n_chunks = (k + P::CHUNK - 1) / P::CHUNK;
    const bool has_slice = warp < n_slices(n_chunks);
    const Slice slice = has_slice ? slice_of(warp, n_chunks) : Slice{0, 0};
    const int has_up = args.up.data ? 1 : 0;
    const int total = (slice.end - slice.begin) << has_up;

    // Shared memory of the warp: stages of rows, and x's slice.
    char* of_rows = shared + warp * (ONE_STAGES * P::WARP_BYTES + args.slice_chunks * P::X_BYTES);
    char* of_x = of_rows + ONE_STAGES * P::WARP_BYTES;

    const auto rows_of = [&](int group) -> typename P::Rows {
        const RowGroup at(args, group);
        return TwoRows(args.weight[at.part], of.matrix.weight, at.first_row, lane.g, run);
    };
    const auto load = [&](const typename P::Rows& rows, int i, int stage) {
        const i64_t moved = has_up & i ? args.up.data - args.weight[0].data : 0;
        const int chunk = slice.begin + (i >> has_up);
        P::load_rows(of_rows + stage * P::WARP_BYTES, rows, moved, chunk, k, args.is_aligned, lane);
    };

    int group = blockIdx.x, stage = 0;
    typename P::Rows rows = rows_of(group);
    if (total > 0) load(rows, 0, 0);
    if (is_ahead) after_launches_before();
    const char* x = column_of_x(args, of.matrix, of.column, run);
    for (int i = 0; i < slice.end - slice.begin; ++i) {
        char* to = of_x + i * P::X_BYTES;
        const int first = (slice.begin + i) * P::CHUNK;
        if (args.rounds_x) {
            P::round_x(to, (const float*)x + first, k - first, lane);
        } else {
            const int at = threadIdx.x % 32 * 16;
            if (at < P::X_BYTES) copy_async_16(to + at, x + (i64_t)(slice.begin + i) * P::X_BYTES + at);
        }
    }
    copy_async_commit();

    while (group < args.n_row_blocks) {
        const int next_group = group + (int)gridDim.x;
        const bool is_last = next_group >= args.n_row_blocks;
        const typename P::Rows next_rows = is_last ? rows : rows_of(next_group);
        float sums[4] = {}, other[4] = {};  // of the weights in turn
        for (int i = 0; i < total; ++i) {
            copy_async_wait<0>();
            __syncwarp();  // and the stage before this one is free
            if (i + 1 < total) {
                load(rows, i + 1, stage ^ 1);
            } else if (!is_last) {
                load(next_rows, 0, stage ^ 1);
            }
            copy_async_commit();
            const int in_slice = i >> has_up;
            P::multiply_one(sums, of_rows + stage * P::WARP_BYTES, of_x + in_slice * P::X_BYTES, rows,
                            slice.begin + in_slice, k, lane);
            stage ^= 1;
            if (has_up) {
                for (int j = 0; j < 4; j += 2) {
                    const float sum = sums[j];
                    sums[j] = other[j];
                    other[j] = sum;
                }
            }
        }
        if (lane.t == P::ONE_LANE) {
            for (int j = 0; j < 2; ++j) {
                partial[0][warp][lane.g + 8 * j] = sums[2 * j];
                partial[1][warp][lane.g + 8 * j] = other[2 * j];
            }
        }
        __syncthreads();
        const RowGroup at(args, group);
        const int row = threadIdx.x;
        if (row < WARP_ROWS && at.first_row + row < args.weight[at.part].ne[1].at(run)) {
            float both[2];
            for (int i = 0; i < 2; ++i) {
                both[i] = partial[i][0][row];
                for (int j = 1; j < n_slices(n_chunks); ++j) both[i] += partial[i][j][row];
            }
            float* y = column_of_y(args, of.matrix, of.column, run, at.part);
            y[at.first_row + row] = finished(args, both[0], both[1], at.first_row + row, at.part);
        }
        group = next_group;
        rows = next_rows;
        if (!is_last) __syncthreads();  // the sums were read
    }
}
