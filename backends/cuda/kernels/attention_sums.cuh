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
// one is not finite: at the end, since such a sum stays so.
template <class S>
__device__ float store_sums(float* to, int dv, Fold f, bool is_first, bool is_last, float factor,
                            int half, const float (&sums)[S::N / 8][4]) {
    constexpr int AT_ONCE = S::EXACT ? 8 : 4;  // pairs that a lane waits for together
    const int column = threadIdx.x % 4 * 2;
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
            }
        }
        if (is_last) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    finite = fmaf(v[j][e], 0.0f, finite);
                    v[j][e] = final_value(v[j][e], factor);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) store_pair<S>(to, (begin + j) * 8 + column, dv, v[j]);
    }
    return finite;
}

// The state of a row's chunk: stored, or folded into that of the chunks before, whose sums lie in y.
// Returns whether all sums are finite.
template <class S>
__device__ bool finish_row(const Args& args, const Run& run, typename S::Shared& shared,
                           const Item& item, int chunk, int tile, int half, const Sums<S>& sums) {
    const Work& work = shared.work;
    const int r = S::row_of_lane(tile, half), column = threadIdx.x % 4;
    const float largest = sums.largest[tile][half] * unit_of<S>(args, shared, r);
    const Softmax softmax = {largest, sums.weights[tile][2 * half]};
    Softmax all = shared.all[r];
    const Fold f = fold(all, softmax);
    __syncwarp();  // all lanes of the row have read it
    if (column == 0) shared.all[r] = all;
    if (!work.computes(r)) return true;
    const BlockRow row = work.rows.at(r);
    if (work.task.slot >= 0) {
        const Partials partials(args, run);
        const i64_t at = partials.index(work.slot_of(chunk) + row.i, row.head);
        if (column == 0) partials.softmax[at] = softmax;
        float* to = partials.sums + at * work.dv;
        return store_sums<S>(to, work.dv, {0.0f, 1.0f}, true, true, 1.0f, half, sums.v[tile]) == 0.0f;
    }
    const float factor = final_factor(all, sink_of(args, row.head), args.unit);
    float* to = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
    return store_sums<S>(to, work.dv, f, chunk == item.chunk, chunk + 1 == item.end_chunk, factor, half,
                         sums.v[tile]) == 0.0f;
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
