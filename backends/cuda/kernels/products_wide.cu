// Products of many columns with weights of f16, by blocks of 128 rows (64 of both weights of a gated
// unit) and 256 columns: a warp has 64 x 64, so that L2 is asked for a quarter less than by blocks of
// 128 x 128, and shared memory for a third less.
//
//   grid  x: blocks of rows, of all parts of a launch, times blocks of columns, times matrices
//   smem  2 stages of a chunk of 128 rows and of 256 columns, 48 KB each; 128 KB of sums
//   without ids; rows of weights are a whole number of chunks, and aligned to 16 bytes
//
// Registers hold the sums of a slice of K only (products.cuh: the order of sums). Those of all slices
// before lie in shared memory, where each thread has its own.
#include "products_floats.cuh"
#include "products_many.cuh"

constexpr int WIDE_COLUMNS = 256;
constexpr int WIDE_STAGES = 2;
constexpr int WIDE_GROUPS = 4;  // of 16 rows, of a warp
constexpr int WIDE_TILES = 8;   // of 8 columns
constexpr int WIDE_CHUNK = FLOAT_CHUNK_BYTES / f16::SIZE;
constexpr int WARPS_BELOW = WARPS / WIDE_GROUPS;  // warps that have the rows of a block between them

// Rows of a chunk lie one after another, 128 bytes each. Their groups of 16 bytes are permuted by the
// row's number, so that those of one place in eight rows lie in different banks.
constexpr int PIECES = FLOAT_CHUNK_BYTES / 16;
constexpr int WIDE_ROWS_BYTES = WARPS * WARP_ROWS * FLOAT_CHUNK_BYTES;
constexpr int WIDE_STAGE_BYTES = WIDE_ROWS_BYTES + WIDE_COLUMNS * FLOAT_CHUNK_BYTES;

__device__ inline int wide_place(int row, int piece) {
    return row * FLOAT_CHUNK_BYTES + (piece ^ row % 8) * 16;
}

// Adds a chunk: sums[WIDE_GROUPS * tile + i] of group i of 16 rows and a tile of 8 columns, in the order
// of Floats::multiply.
__device__ inline void multiply_wide(
    float (&sums)[WIDE_GROUPS * WIDE_TILES][4], SharedAddress a_row, SharedAddress b_row, int n_tiles
) {
#pragma unroll
    for (int at = 0; at < WIDE_CHUNK / 16; at += 2) {
        u32_t a[WIDE_GROUPS][2][4];
#pragma unroll
        for (int i = 0; i < WIDE_GROUPS; ++i) {
            const int of_group = i * WARP_ROWS * FLOAT_CHUNK_BYTES;
            ldmatrix_x4(a[i][0], column_16(a_row, at) + of_group);
            ldmatrix_x4(a[i][1], column_16(a_row, at + 1) + of_group);
        }
        each_tile<WIDE_TILES>(n_tiles, [&](int tile) {
            u32_t b[4];
            ldmatrix_x4(b, column_16(b_row, at) + tile * COLUMNS * FLOAT_CHUNK_BYTES);
#pragma unroll
            for (int i = 0; i < WIDE_GROUPS; ++i) {
                mma_f16(sums[WIDE_GROUPS * tile + i], a[i][0], {b[0], b[1]});
                mma_f16(sums[WIDE_GROUPS * tile + i], a[i][1], {b[2], b[3]});
            }
        });
    }
}

KERNEL(multiply_wide_columns, ProductArgs, PRODUCT_THREADS) {
    DYNAMIC_SHARED_AT(128, char, shared);
    const bool has_up = args.up.data;
    const int warp = threadIdx.x / 32, in_warp = threadIdx.x % 32;
    const bool is_up = has_up && warp >= WARPS / 2;
    const int block_rows = (has_up ? WARPS / 2 : WARPS) * WARP_ROWS;
    const RowGroup rows_of_part(args, blockIdx.x % args.n_row_blocks, block_rows);
    const int part = rows_of_part.part, first_row = rows_of_part.first_row;
    const ManyColumns block = columns_of_block(args, run, part);
    const int m = args.weight[part].ne[1].at(run), k = args.weight[part].ne[0].at(run);
    if (block.n <= 0 || first_row >= m) return;

    const int n_tiles = whole_tiles(block.n);
    // Each warp copies 16 rows, of which those behind the last one are that one, and all copy columns.
    const Lane lane;
    const int row = first_row + (is_up ? warp - WARPS / 2 : warp) * WARP_ROWS;
    const TwoRows rows(is_up ? args.up : args.weight[part], block.matrix.weight, row, lane.g, run);
    const SharedAddress stages = to_shared(shared);
    const int row_place = wide_place(warp * WARP_ROWS + lane.g, lane.t);
    const int piece = threadIdx.x % PIECES, column = threadIdx.x / PIECES;
    const int column_place = WIDE_ROWS_BYTES + wide_place(column, piece);
    const char* const x = column_of_x(args, block.matrix, block.first, run) + piece * 16;
    const u32_t x_stride = args.rounded.data ? (u32_t)args.rounded_bytes : (u32_t)args.x.nb[1];
    const auto load = [&](int chunk) {
        const SharedAddress stage = stages + chunk % WIDE_STAGES * WIDE_STAGE_BYTES;
        const int from = chunk * FLOAT_CHUNK_BYTES;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const SharedAddress to = stage + row_place + i * 8 * FLOAT_CHUNK_BYTES;
            copy_async_16(to, rows.at[i] + from + lane.t * 16);
            copy_async_16(column_16(to, PIECES / 4), rows.at[i] + from + (lane.t + PIECES / 2) * 16);
        }
#pragma unroll
        for (int i = 0; i < WIDE_COLUMNS; i += PRODUCT_THREADS / PIECES) {
            if (i + column >= n_tiles * COLUMNS) break;
            const SharedAddress to = stage + column_place + i * FLOAT_CHUNK_BYTES;
            const u32_t at = min(i + column, block.n - 1);  // behind the last one, that one
            copy_async_16(to, x + from + (unsigned long long)at * x_stride);
        }
    };

    const int first_group = warp % WARPS_BELOW * WIDE_GROUPS;
    const int first_tile = warp / WARPS_BELOW * WIDE_TILES;
    const int n_tiles_here =
        n_tiles == 1 && first_tile == 0 ? 1 : min((int)WIDE_TILES, n_tiles - first_tile);
    const int a_place = wide_place(first_group * WARP_ROWS + in_warp % 16, in_warp / 16);
    const int b_place =
        WIDE_ROWS_BYTES + wide_place(first_tile * COLUMNS + in_warp % 8, in_warp / 8);
    float4* const before = (float4*)(shared + WIDE_STAGES * WIDE_STAGE_BYTES) + threadIdx.x;

    const int n_chunks = k / WIDE_CHUNK;
    int slice = 0, slice_end = slice_of(0, n_chunks).end;
    float sums[WIDE_GROUPS * WIDE_TILES][4] = {};
    load(0);
    copy_async_commit();
#pragma unroll 1
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
        copy_async_wait<0>();
        __syncthreads();  // and the other stage is free
        if (chunk + 1 < n_chunks) load(chunk + 1);
        copy_async_commit();
        const SharedAddress stage = stages + chunk % WIDE_STAGES * WIDE_STAGE_BYTES;
        if (n_tiles_here > 0) multiply_wide(sums, stage + a_place, stage + b_place, n_tiles_here);
        if (chunk + 1 < slice_end) continue;
#pragma unroll
        for (int i = 0; i < WIDE_GROUPS * WIDE_TILES; ++i) {
            float(&v)[4] = sums[i];
            float4& sum = before[i * PRODUCT_THREADS];
            float4 all = {v[0], v[1], v[2], v[3]};
            if (slice > 0) {
                all = sum;
                all.x += v[0], all.y += v[1], all.z += v[2], all.w += v[3];
            }
            sum = all;
            for (int j = 0; j < 4; ++j) v[j] = 0.0f;
        }
        slice_end = slice_of(++slice, n_chunks).end;
    }
#pragma unroll
    for (int i = 0; i < WIDE_GROUPS * WIDE_TILES; ++i) {
        const float4 sum = before[i * PRODUCT_THREADS];
        sums[i][0] = sum.x, sums[i][1] = sum.y, sums[i][2] = sum.z, sums[i][3] = sum.w;
    }
    __syncthreads();

    // As in multiply_many: [column][row]
    float* tile_sums = (float*)shared;
#pragma unroll
    for (int i = 0; i < WIDE_GROUPS * WIDE_TILES; ++i) {
        for (int j = 0; j < 4; ++j) {
            const int of = (first_tile + i / WIDE_GROUPS) * COLUMNS + lane.t * 2 + j % 2;
            const int at = (first_group + i % WIDE_GROUPS) * WARP_ROWS + lane.g + j / 2 * 8;
            if (of < block.n) tile_sums[of * TILE_PITCH + at] = sums[i][j];
        }
    }
    store_tiles(args, run, block, tile_sums, first_row, block_rows, false, part);
}
