// Rows of floats that a team of threads works on together: a warp for short rows, a block for long
// ones. A row is cut into tiles of QUADS * 4 floats a thread, and a row of one tile is read once: it
// stays in registers.
//
//   quad q of thread r    floats 4 (r + q SIZE) .. + 3 of the tile: neighbours load 16 bytes each
//
// The team, and with it the order in which a row is added up, is decided by the length of the row
// alone. It is the same for rows that are not aligned to 16 bytes, which are loaded float by float.
#pragma once
#include "common.cuh"

constexpr int BLOCK = 256;
constexpr int QUADS = 4;
constexpr int WARP_ROW = 32 * QUADS * 4;  // the longest row of a warp: reduce_rows.py knows it too

struct Warp {
    static constexpr int SIZE = 32;
    static constexpr int TILE = WARP_ROW;
    __device__ static int rank() { return threadIdx.x % 32; }
    __device__ static float sum(float v) { return warp_sum(v); }
    __device__ static float max(float v) { return warp_max(v); }
};

struct Block {
    static constexpr int SIZE = BLOCK;
    static constexpr int TILE = BLOCK * QUADS * 4;
    __device__ static int rank() { return threadIdx.x; }
    __device__ static float sum(float v) { return block_sum<BLOCK>(v); }
    __device__ static float max(float v) { return block_max<BLOCK>(v); }
};

// The row of this thread's team: blocks have one row, or one for each of their warps.
__device__ inline i64_t row_of_team(int rows_per_block) {
    if (rows_per_block == 1) return blockIdx.x;
    return (i64_t)blockIdx.x * rows_per_block + threadIdx.x / 32;
}

// Runs Op::row<Team>(args, run, row, n) for row `row` of n floats. A block that was launched for long
// rows may find a short one where counts vary: its first warp takes it.
template <class Op, class Args>
__device__ inline void run_row(const Args& args, const Run& run, i64_t row, int n) {
    if (n > WARP_ROW) {
        Op::template row<Block>(args, run, row, n);
    } else if (args.rows_per_block > 1 || threadIdx.x < 32) {
        Op::template row<Warp>(args, run, row, n);
    }
}

// The same for all rows of x.
template <class Op, class Args>
__device__ inline void run_rows(const Args& args, const Tensor& x, const Run& run) {
    const i64_t row = row_of_team(args.rows_per_block);
    if (row < x.n_rows(run)) run_row<Op>(args, run, row, x.ne[0].at(run));
}

__device__ inline const float* row_at(const Tensor& x, const Row& at) {
    return (const float*)x.at(at.i1, at.i2, at.i3);
}
__device__ inline float* row_to(const Tensor& y, const Row& at) {
    return (float*)y.at(at.i1, at.i2, at.i3);
}

// The row of x for row `at` of a tensor whose dimensions 1 to 3 those of x repeat to.
__device__ inline const float* repeated_row(const Tensor& x, const Row& at, const Run& run) {
    const int n1 = x.ne[1].at(run), n2 = x.ne[2].at(run), n3 = x.ne[3].at(run);
    return row_at(x, {n1 == 1 ? 0 : at.i1 % n1, n2 == 1 ? 0 : at.i2 % n2, n3 == 1 ? 0 : at.i3 % n3});
}

// Whether all quads of rows at these addresses are whole and aligned.
__device__ inline bool in_quads(const void* x, int n) { return ((i64_t)x % 16 | n % 4) == 0; }

// The first float of quad q of this thread, in the tile that starts at `tile`.
template <class Team>
__device__ inline int quad_start(int tile, int q) {
    return tile + 4 * (Team::rank() + q * Team::SIZE);
}

// Loads this thread's quads of a tile of a row of n floats; `beyond` is what is past its end.
template <class Team>
__device__ inline void load_tile(float (&v)[QUADS][4], const float* x, int tile, int n, float beyond) {
    if (in_quads(x, n)) {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const int i = quad_start<Team>(tile, q);
            float4 quad = {beyond, beyond, beyond, beyond};
            if (i < n) quad = *(const float4*)(x + i);
            v[q][0] = quad.x;
            v[q][1] = quad.y;
            v[q][2] = quad.z;
            v[q][3] = quad.w;
        }
    } else {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const int i = quad_start<Team>(tile, q);
#pragma unroll
            for (int j = 0; j < 4; ++j) v[q][j] = i + j < n ? x[i + j] : beyond;
        }
    }
}

template <class Team>
__device__ inline void store_tile(const float (&v)[QUADS][4], float* y, int tile, int n) {
    if (in_quads(y, n)) {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const int i = quad_start<Team>(tile, q);
            if (i < n) *(float4*)(y + i) = make_float4(v[q][0], v[q][1], v[q][2], v[q][3]);
        }
    } else {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const int i = quad_start<Team>(tile, q);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (i + j < n) y[i + j] = v[q][j];
            }
        }
    }
}
