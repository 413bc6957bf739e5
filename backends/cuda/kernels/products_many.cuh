// Products of many columns by tiles: 128 rows, or 64 of both weights of a gated unit, times as many
// columns as the launcher has shared memory for.
//
//   grid  x: blocks of rows, times blocks of columns, times matrices; y: 1, or SLICES
//
// Each warp copies 16 rows. Blocks of a grid with y write the sum of their slice, which
// finish_product (products_rows.cu) adds: for products that have less tiles than the device has
// multiprocessors.
#pragma once
#include "products.cuh"

constexpr int TILES = MOST_COLUMNS / COLUMNS;  // of an mma, beside each other

// What a block computes.
struct ManyColumns {
    Matrix matrix;
    const int* list;  // of the columns of an expert, or null
    int first;        // in the list or matrix
    int n;

    __device__ int column(int i) const { return list ? list[first + i] : first + i; }
};

// Block `index` of the columns of all experts, each of which has blocks of its own.
__device__ inline ManyColumns columns_of_experts(const ProductArgs& args, int index, const Run& run) {
    const int n_experts = args.weight[0].ne[2].at(run), lane = threadIdx.x % 32;
    const ExpertLists lists(args.lists, args.weight[0].ne[2].bound);
    int before = 0;  // blocks of the experts before
    for (int base = 0; base < n_experts; base += 32) {
        const int expert = base + lane;
        const int n = expert < n_experts ? lists.count[expert] : 0;
        const int n_blocks = (n + args.columns - 1) / args.columns;
        int end = n_blocks;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, end, step);
            if (lane >= step) end += other;
        }
        const u32_t behind = __ballot_sync(ALL_LANES, before + end > index);
        if (behind) {
            const int found = __ffs(behind) - 1;
            const int begin = before + __shfl_sync(ALL_LANES, end - n_blocks, found);
            const int first = (index - begin) * args.columns;
            const int n_of = __shfl_sync(ALL_LANES, n, found);
            const int id = base + found;
            const int* list = lists.columns + lists.first[id];
            return {{id * args.weight[0].nb[2], 0, 0, 0}, list, first, min(args.columns, n_of - first)};
        }
        before += __shfl_sync(ALL_LANES, end, 31);
    }
    return {{0, 0, 0, 0}, nullptr, 0, 0};
}

__device__ inline ManyColumns columns_of_block(const ProductArgs& args, const Run& run, int part = 0) {
    const int rest = blockIdx.x / args.n_row_blocks;
    if (args.ids.data) return columns_of_experts(args, rest, run);
    const int matrix_index = rest / args.n_column_blocks;
    const Matrix matrix = Matrix::of_product(args, args.weight[part], matrix_index, run);
    const int first = (rest - matrix_index * args.n_column_blocks) * args.columns;
    return {matrix, nullptr, first, min(args.columns, matrix.n - first)};
}

// Where the sums of a slice are: [slice][weight][matrix of y][column][row], of bounds, with rows up to a
// multiple of four.
__device__ inline float* sums_of_slice(
    const ProductArgs& args, const Matrix& matrix, int column, int slice, bool is_up
) {
    const i64_t n_columns = args.y[0].ne[1].bound;
    const i64_t n_matrices = (i64_t)args.y[0].ne[2].bound * args.y[0].ne[3].bound;
    const i64_t in_matrix = (i64_t)matrix.i3 * args.y[0].ne[2].bound + matrix.i2;
    const i64_t weights = args.up.data ? 2 : 1;
    const i64_t row = args.ids.data ? column : in_matrix * n_columns + column;
    const i64_t whole = slice * weights + is_up;
    const i64_t pitch = (args.y[0].ne[0].bound + 3) / 4 * 4;
    return (float*)args.sums.data + (whole * n_matrices * n_columns + row) * pitch;
}

constexpr int TILE_PITCH = WARPS * WARP_ROWS + 4;  // of a column of sums in shared memory

// Results of a block, from sums [column][row] in shared memory: a warp has a column.
__device__ inline void store_tiles(
    const ProductArgs& args, const Run& run, const ManyColumns& block, const float* tile_sums,
    int first_row, int block_rows, bool is_slice, int part = 0
) {
    const bool has_up = args.up.data;
    const int n_rows = min(block_rows, args.weight[part].ne[1].at(run) - first_row);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < block.n; i += WARPS) {
        const int column = block.column(i);
        const float* sum = tile_sums + i * TILE_PITCH;
        float *y, *y_up = nullptr;
        if (is_slice) {
            y = sums_of_slice(args, block.matrix, column, blockIdx.y, false) + first_row;
            if (has_up) y_up = sums_of_slice(args, block.matrix, column, blockIdx.y, true) + first_row;
        } else {
            y = column_of_y(args, block.matrix, column, run, part) + first_row;
        }
#pragma unroll 1
        for (int at = threadIdx.x % 32; at < n_rows; at += 32) {
            const float up = has_up ? sum[block_rows + at] : 0.0f;
            y[at] = is_slice ? sum[at] : finished(args, sum[at], up, first_row + at, part);
            if (y_up) y_up[at] = up;
        }
    }
}

template <class P>
__device__ void multiply_many(const ProductArgs& args, const Run& run) {
    DYNAMIC_SHARED(char, shared);
    __shared__ const char* columns_of_x[MOST_COLUMNS];
    const ManyColumns block = columns_of_block(args, run);
    const int m = args.weight[0].ne[1].at(run), k = args.weight[0].ne[0].at(run);
    const bool has_up = args.up.data;
    const int warp = threadIdx.x / 32;
    const bool is_up = has_up && warp >= WARPS / 2;
    const int block_rows = (has_up ? WARPS / 2 : WARPS) * WARP_ROWS;
    const int first_row = blockIdx.x % args.n_row_blocks * block_rows;
    const int row = first_row + (is_up ? warp - WARPS / 2 : warp) * WARP_ROWS;  // of this warp
    const int n_chunks = (k + P::CHUNK - 1) / P::CHUNK;
    if (block.n <= 0 || first_row >= m) return;
    const bool is_slice = gridDim.y > 1;
    if (is_slice && (int)blockIdx.y >= n_slices(n_chunks)) return;

    const int n_tiles = whole_tiles(block.n);
    for (int i = threadIdx.x; i < n_tiles * COLUMNS; i += PRODUCT_THREADS) {
        const int column = block.column(min(i, block.n - 1));  // behind the last one, that one
        columns_of_x[i] = column_of_x(args, block.matrix, column, run);
    }
    __syncthreads();

    const Lane lane;
    const typename P::Rows rows =
        TwoRows(is_up ? args.up : args.weight[0], block.matrix.weight, row, lane.g, run);
    const int stage_bytes = WARPS * P::WARP_BYTES + args.columns * P::COLUMN_BYTES;
    const auto load = [&](int chunk, int i) {
        char* stage = shared + i % P::MANY_STAGES * stage_bytes;
        if (row < m) {
            P::load_rows(stage + warp * P::WARP_BYTES, rows, 0, chunk, k, args.is_aligned, lane);
        }
        char* x = stage + WARPS * P::WARP_BYTES;
        P::load_columns(x, columns_of_x, args.columns, n_tiles * COLUMNS, chunk);
    };

    // What this warp multiplies: some groups of 16 rows, and a part of the columns. In the place of a
    // group that is behind the last row it has the first one, in vain.
    constexpr int G = P::WARP_GROUPS, N = TILES / G;
    const int first_group = warp % (WARPS / G) * G, first_tile = warp / (WARPS / G) * N;
    const int weight_groups = block_rows / WARP_ROWS;
    int group_bytes[G];
    for (int i = 0; i < G; ++i) {
        const int group = first_group + i;
        const bool is_there = first_row + group % weight_groups * WARP_ROWS < m;
        group_bytes[i] = (is_there ? group : 0) * P::WARP_BYTES;
    }
    const int n_tiles_here = n_tiles == 1 && first_tile == 0 ? 1 : min(N, n_tiles - first_tile);

    int slice = is_slice ? blockIdx.y : 0;
    const int begin = is_slice ? slice_of(slice, n_chunks).begin : 0;
    const int end = is_slice ? slice_of(slice, n_chunks).end : n_chunks;
    int slice_end = slice_of(slice, n_chunks).end;
    float sums[TILES][4];
    float acc[TILES][4] = {};
    bool is_first = true;
    for (int i = 1 - P::MANY_STAGES; i < end - begin; ++i) {
        if (i >= 0) {
            copy_async_wait<P::MANY_STAGES - 2>();
            __syncthreads();  // and the stage before this one is free
        }
        const int next = i + P::MANY_STAGES - 1;
        if (next < end - begin) load(begin + next, next);
        copy_async_commit();
        if (i < 0) continue;
        const char* stage = shared + i % P::MANY_STAGES * stage_bytes;
        const char* groups[G];
        for (int j = 0; j < G; ++j) groups[j] = stage + group_bytes[j];
        if (n_tiles_here > 0 && (G > 1 || row < m)) {
            P::multiply_many(
                acc, groups, stage + WARPS * P::WARP_BYTES + P::tiles_bytes(first_tile), args.columns,
                n_tiles_here, rows, begin + i, k, lane
            );
        }
        if (begin + i + 1 == slice_end) {
            for (int tile = 0; tile < TILES; ++tile) {
                for (int j = 0; j < 4; ++j) {
                    sums[tile][j] = is_first ? acc[tile][j] : sums[tile][j] + acc[tile][j];
                    acc[tile][j] = 0.0f;
                }
            }
            is_first = false;
            slice_end = slice_of(++slice, n_chunks).end;
        }
    }
    __syncthreads();

    // Sums go through shared memory, where those of both weights meet: [column][row]
    float* tile_sums = (float*)shared;
    for (int tile = 0; tile < TILES; ++tile) {
        for (int j = 0; j < 4; ++j) {
            const int column = (first_tile + tile / G) * COLUMNS + lane.t * 2 + j % 2;
            const int at = (first_group + tile % G) * WARP_ROWS + lane.g + j / 2 * 8;
            if (column < block.n) tile_sums[column * TILE_PITCH + at] = sums[tile][j];
        }
    }
    store_tiles(args, run, block, tile_sums, first_row, block_rows, is_slice);
}
