// Sums of attention_mma: weights times V, and how they leave a block.
#pragma once
#include "attention_size.cuh"

constexpr u32_t ONES = 0x3c003c00u;  // two 1 as f16

// Adds weights times rows of V, and the weights themselves.
template <class S>
__device__ void multiply_values(Rows<S::N, S::CELLS>& tile_v, const Scores<S>& p, int dv,
                                Sums<S>& sums) {
    const u32_t lane = opaque(threadIdx.x) % 32u;
    const SharedAddress v = to_shared(tile_v.at(lane % 16, lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < S::CELLS / 16; ++i) {
        u32_t a[S::TILES][4];
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float(&of_cells)[4] = p.v[tile][2 * i + j / 2];
                a[tile][j] = pack_halves(of_cells[j % 2 * 2], of_cells[j % 2 * 2 + 1]);
            }
            mma_f16(sums.weights[tile], a[tile], {ONES, ONES});
        }
#pragma unroll
        for (int j = 0; j < S::N / 16; ++j) {
            if (!S::EXACT && j * 16 >= dv) break;
            u32_t b[4];
            ldmatrix_x4_trans(b, column_16(v, j) + i * 16 * 2 * S::N);
#pragma unroll
            for (int tile = 0; tile < S::TILES; ++tile) {
                mma_f16(sums.v[tile][2 * j], a[tile], {b[0], b[1]});
                mma_f16(sums.v[tile][2 * j + 1], a[tile], {b[2], b[3]});
            }
        }
    }
}

// The first column of a lane. Where there may be fewer, comparisons with their number are not made ahead.
template <class S>
__device__ int column_of_lane() {
    return (S::EXACT ? threadIdx.x : (u32_t)opaque(threadIdx.x)) % 4 * 2;
}

// Two columns of a row of sums, of which there may be fewer.
template <class S>
__device__ void load_pair(const float* row, int column, int dv, float (&v)[2]) {
    if (S::EXACT) {
        const float2 pair = *(const float2*)(row + column);
        v[0] = pair.x, v[1] = pair.y;
    } else {
        for (int e = 0; e < 2; ++e) v[e] = column + e < dv ? row[column + e] : 0.0f;
    }
}

template <class S>
__device__ void store_pair(float* row, int column, int dv, const float (&v)[2]) {
    if (S::EXACT) {
        *(float2*)(row + column) = {v[0], v[1]};
    } else {
        for (int e = 0; e < 2; ++e) {
            if (column + e < dv) row[column + e] = v[e];
        }
    }
}

// Adds the sums of a row's chunk to those in `to`, and divides the last ones. Returns 0, or NaN where
// one of the last is not finite: at the end, since such a sum stays so.
template <class S, bool IS_LAST>
__device__ float fold_sums(float* to, int dv, Fold f, bool is_first, float factor, int half,
                           const float (&sums)[S::N / 8][4]) {
    constexpr int AT_ONCE = S::EXACT ? 8 : 4;  // pairs that a lane waits for together
    const int column = column_of_lane<S>();
    float finite = 0.0f;
#pragma unroll
    for (int begin = 0; begin < S::N / 8; begin += AT_ONCE) {
        float v[AT_ONCE][2] = {};
        if (!is_first) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) load_pair<S>(to, (begin + j) * 8 + column, dv, v[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                v[j][e] = fmaf(sums[begin + j][2 * half + e], f.added_factor, v[j][e] * f.factor);
                if (!IS_LAST) continue;
                finite = fmaf(v[j][e], 0.0f, finite);
                v[j][e] = final_value(v[j][e], factor);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) store_pair<S>(to, (begin + j) * 8 + column, dv, v[j]);
    }
    return finite;
}

// Stores the sums of a row's chunk. Returns 0, or NaN where one is not finite.
template <class S>
__device__ float store_sums(float* to, int dv, int half, const float (&sums)[S::N / 8][4]) {
    const int column = column_of_lane<S>();
    float finite = 0.0f;
#pragma unroll
    for (int j = 0; j < S::N / 8; ++j) {
        const float v[2] = {sums[j][2 * half], sums[j][2 * half + 1]};
#pragma unroll
        for (int e = 0; e < 2; ++e) finite = fmaf(v[e], 0.0f, finite);
        store_pair<S>(to, j * 8 + column, dv, v);
    }
    return finite;
}

// The state of a row's chunk.
template <class S>
__device__ Softmax softmax_of(const Args& args, const typename S::Shared& shared, int tile, int half,
                              const Sums<S>& sums) {
    const float unit = unit_of<S>(args, shared, S::row_of_lane(tile, half));
    return {sums.largest[tile][half] * unit, sums.weights[tile][2 * half]};
}

// Folds the state of a row's chunk into that of the chunks before, whose sums lie in y. Returns whether
// all sums are finite, of the last chunk.
template <class S, bool IS_LAST>
__device__ bool fold_row(const Args& args, typename S::Shared& shared, const Work& work, bool is_first,
                         int tile, int half, const Sums<S>& sums) {
    const int r = S::row_of_lane(tile, half);
    Softmax all = shared.all[r];
    const Fold f = fold(all, softmax_of<S>(args, shared, tile, half, sums));
    __syncwarp();  // all lanes of the row have read it
    if (threadIdx.x % 4 == 0) shared.all[r] = all;
    if (!work.computes(r)) return true;
    const BlockRow row = work.rows.at(r);
    const float factor = IS_LAST ? final_factor(all, sink_of(args, row.head), args.unit) : 1.0f;
    float* to = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
    const int dv = S::EXACT ? S::N : work.dv;
    return fold_sums<S, IS_LAST>(to, dv, f, is_first, factor, half, sums.v[tile]) == 0.0f;
}

// Stores the state of a row's chunk, for the block that combines the task. Returns whether all sums are
// finite.
template <class S>
__device__ bool store_row(const Args& args, const Run& run, const typename S::Shared& shared,
                          const Work& work, int chunk, int tile, int half, const Sums<S>& sums) {
    const int r = S::row_of_lane(tile, half);
    if (!work.computes(r)) return true;
    const BlockRow row = work.rows.at(r);
    const Partials partials(args, run);
    const i64_t at = partials.index(work.slot_of(chunk) + row.i, row.head);
    if (threadIdx.x % 4 == 0) partials.softmax[at] = softmax_of<S>(args, shared, tile, half, sums);
    return store_sums<S>(partials.sums + at * work.dv, work.dv, half, sums.v[tile]) == 0.0f;
}

// A chunk is complete. Returns whether all sums are finite that leave the block.
template <class S>
__device__ bool finish_chunk(const Args& args, const Run& run, typename S::Shared& shared,
                             const Item& item, int chunk, const Sums<S>& sums) {
    // Read once where registers suffice: stores to y might change it, as compilers see it.
    const Work held = shared.work, &work = S::EXACT ? held : shared.work;
    const bool is_first = chunk == item.chunk, is_last = chunk + 1 == item.end_chunk;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 2 * S::TILES; ++i) {
        const int tile = i / 2, half = i % 2;
        if (work.task.slot >= 0) {
            finite &= store_row<S>(args, run, shared, work, chunk, tile, half, sums);
        } else if (is_last) {
            finite &= fold_row<S, true>(args, shared, work, is_first, tile, half, sums);
        } else {
            fold_row<S, false>(args, shared, work, is_first, tile, half, sums);
        }
    }
    return finite;
}

// Rows of a task without any cell.
template <class S>
__device__ void store_zeros(const Args& args, const Work& work) {
    for (int r = 0; r < work.rows.count(); ++r) {
        const BlockRow row = work.rows.at(r);
        float* y = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
        for (int i = threadIdx.x; i < work.dv; i += S::GROUPS * S::THREADS) y[i] = 0.0f;
    }
}
