// Tiles of rows of K and V in shared memory, as f16, and how they get there.
#pragma once
#include "async.cuh"
#include "attention_block.cuh"
#include "attention_rows.cuh"
#include "mma.cuh"

__device__ inline u32_t pack_halves(float low, float high) {
#ifdef GGMLPY_EMULATED
    return float_to_half(low) | (u32_t)float_to_half(high) << 16;
#else
    u32_t bits;
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#endif
}

// A value of which nothing is computed ahead of here: addresses that follow from it would take more
// registers than there are.
__device__ inline int opaque(int v) {
#ifndef GGMLPY_EMULATED
    asm volatile("" : "+r"(v));
#endif
    return v;
}

// Rows of halves, at a multiple of their size. The groups of 16 bytes of a row are permuted by its
// number, so that those of one column in eight rows lie in different banks.
template <int N, int COUNT>
struct Rows {
    u16_t halves[COUNT][N];

    __device__ u16_t* at(int row, int column) {
        return &halves[row][(column / 8 ^ row % 8) * 8 + column % 8];
    }
    __device__ const u16_t* at(int row, int column) const {
        return const_cast<Rows*>(this)->at(row, column);
    }
};

// What the copies of a block need of K and V: cell 0 of its head.
struct Bases {
    const char* k;
    const char* v;
};

// A tile whose cells all are seen, and rows that have all elements: a thread copies 16 bytes of
// each 128 of some rows, which in shared memory are apart by a constant.
template <class S>
__device__ void copy_whole_tile(const Args& args, typename S::Shared& shared, typename S::Tiles& tiles,
                                int stage) {
    constexpr int COLUMNS = 8, STEP = S::THREADS / COLUMNS;
    static_assert(STEP % 8 == 0, "rows of a thread are permuted alike, within groups of 8 columns");
    const u32_t thread = opaque(S::thread());
    const u32_t column = thread % COLUMNS * 8, first = thread / COLUMNS;
    const char* k = shared.bases.k + 2 * column;
    const char* v = shared.bases.v + 2 * column;
    const u32_t k_stride = (u32_t)args.k.nb[1], v_stride = (u32_t)args.v.nb[1];
    const SharedAddress to_k = to_shared(tiles.k[stage].at(first, column));
    const SharedAddress to_v = to_shared(tiles.v[stage].at(first, column));
    const int* cells = &shared.cells[S::group()][stage][first];
#pragma unroll
    for (int i = 0; i < S::CELLS / STEP; ++i) {
        const unsigned long long cell = (u32_t)cells[i * STEP];
#pragma unroll
        for (int j = 0; j < 2 * S::N; j += 16 * COLUMNS) {
            copy_async_16(to_k + i * STEP * 2 * S::N + j, k + cell * k_stride + j);
            copy_async_16(to_v + i * STEP * 2 * S::N + j, v + cell * v_stride + j);
        }
    }
}

// Any other tile. Rows of cells that no row sees, and what is past the end of rows up to a multiple of
// 16, are 0.
template <class S>
__device__ void copy_tile(const Args& args, typename S::Shared& shared, typename S::Tiles& tiles,
                          int stage, int d, int dv) {
    constexpr int COLUMNS = S::N / 8;
    constexpr int AT_ONCE = S::EXACT ? 1 : 4;  // few tiles of prompts are not whole
    const u32_t thread = opaque(S::thread()), column = thread % COLUMNS * 8;
    const char* k = shared.bases.k + 2 * column;
    const char* v = shared.bases.v + 2 * column;
    const u32_t k_stride = (u32_t)args.k.nb[1], v_stride = (u32_t)args.v.nb[1];
    const bool has_k = S::EXACT || column < (d + 15) / 16 * 16;
    const bool has_v = S::EXACT || column < (dv + 15) / 16 * 16;
#pragma unroll AT_ONCE
    for (int i = 0; i < S::CELLS * COLUMNS / S::THREADS; ++i) {
        const u32_t c = i * (S::THREADS / COLUMNS) + thread / COLUMNS;
        const int cell = shared.cells[S::group()][stage][c];
        const bool exists = cell >= 0;
        const unsigned long long at = exists ? cell : 0;
        if (has_k) {
            const bool valid = exists && (S::EXACT || column < d);
            copy_async_16_zfill(tiles.k[stage].at(c, column), k + at * k_stride, valid);
        }
        if (has_v) {
            const bool valid = exists && (S::EXACT || column < dv);
            copy_async_16_zfill(tiles.v[stage].at(c, column), v + at * v_stride, valid);
        }
    }
}

// The same for rows of K or of V of other types, or not aligned to 16 bytes: as f16.
template <class S>
__device__ void convert_rows(Rows<S::N, S::CELLS>& tile, const int* cells, int type,
                             const char* base, i64_t stride, int n, bool vectors) {
    constexpr int COLUMNS = S::N / 8, EACH = S::CELLS * COLUMNS / S::THREADS;
    constexpr int AT_ONCE = S::N > 128 ? 2 : 4;  // groups that a thread waits for together
    const u32_t thread = opaque(S::thread());
    const int column = thread % COLUMNS * 8, first = thread / COLUMNS;
    if (column >= (n + 15) / 16 * 16) return;
#pragma unroll 1
    for (int i = 0; i < EACH; i += AT_ONCE) {
        float v[AT_ONCE][8];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const int cell = cells[(i + j) * (S::THREADS / COLUMNS) + first];
#pragma unroll
            for (int e = 0; e < 8; ++e) v[j][e] = 0.0f;
            if (cell >= 0 && column < n) load_8(type, base + cell * stride, column, n, vectors, v[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            uint4 halves;
            halves.x = pack_halves(v[j][0], v[j][1]);
            halves.y = pack_halves(v[j][2], v[j][3]);
            halves.z = pack_halves(v[j][4], v[j][5]);
            halves.w = pack_halves(v[j][6], v[j][7]);
            *(uint4*)tile.at((i + j) * (S::THREADS / COLUMNS) + first, column) = halves;
        }
    }
}

// A tile of K and V on its way to shared memory. `n_cells` are those that some row sees.
template <class S>
__device__ void load_tile(const Args& args, typename S::Shared& shared, typename S::Tiles& tiles,
                          int stage, int n_cells, int d, int dv) {
    if constexpr (S::CONVERTS) {
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
            const Tensor& x = i == 0 ? args.k : args.v;
            convert_rows<S>(i == 0 ? tiles.k[stage] : tiles.v[stage], shared.cells[S::group()][stage],
                            i == 0 ? args.k_type : args.v_type,
                            i == 0 ? shared.bases.k : shared.bases.v, x.nb[1], i == 0 ? d : dv,
                            i == 0 ? args.k_vectors : args.v_vectors);
        }
        return;
    }
    if constexpr (S::EXACT) {
        if (n_cells == S::CELLS) return copy_whole_tile<S>(args, shared, tiles, stage);
    }
    copy_tile<S>(args, shared, tiles, stage, d, dv);
}
