// Scores of attention_mma, q k^T, and the weights that they become.
#pragma once
#include "attention_size.cuh"

constexpr int UNIT_LOG2 = 14;  // of weights

// 2^x by the instruction alone: what is below 2^-126 is 0.
__device__ inline float power_of_2(float x) {
#ifdef GGMLPY_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// c tanh(x / c), wrong by 2^-22 c: c - 2 c / (1 + e^(2 x / c)). `factor` is 2 log2(e) / c.
__device__ inline float capped(float x, float c, float factor) {
    return c - __fdividef(2.0f * c, 1.0f + power_of_2(x * factor));
}

__device__ inline float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 1));
    return fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 2));
}

// A power of 2 that brings values of up to `largest` near the largest f16: below 2^15. And where the
// op's scale is small (0 gives 0), less: scores are rounded all the same.
__device__ inline float scale_for(float largest, float scale) {
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    const u32_t most = __float_as_uint(fabsf(scale) * 0x1p60f) & 0x7f800000u;
    if (largest == 0.0f || exponent > 127) return fminf(1.0f, __uint_as_float(most));
    const u32_t power = (u32_t)(14 - max(exponent, -100) + 127) << 23;
    return __uint_as_float(min(power, most));
}

// q as left matrices of 16 elements each.
template <class S>
struct Queries {
    u32_t held[S::HOLDS_Q ? S::N / 16 : 1][S::TILES][4];

    __device__ void load(const Args& args, typename S::Shared& shared, int d) {
        constexpr int AT_ONCE = S::HOLDS_Q ? 2 * S::TILES : 1;
#pragma unroll AT_ONCE
        for (int i = 0; i < 2 * S::TILES; ++i) load_row(args, shared, i / 2, i % 2, d);
    }

    __device__ void load_row(const Args& args, typename S::Shared& shared, int tile, int half, int d) {
        const int column = opaque(threadIdx.x) % 4u * 2, r = S::row_of_lane(tile, half);
        const float* row = shared.queries[r];
        float x[S::N / 8][2] = {};
        float largest = 0.0f;
        if (row) {
#pragma unroll
            for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int i = j * 8 + column + e;
                    if (S::EXACT || i < d) x[j][e] = row[i];
                    largest = fmaxf(largest, fabsf(x[j][e]));
                }
            }
        }
        // Scores grow with what they stand for, whatever the sign of the op's scale.
        const float power = scale_for(quad_max(largest), args.scale);
        const float factor = args.scale < 0.0f ? -power : power;
        if (column == 0 && S::group() == 0) {
            shared.scales[r] = power == 0.0f ? 1.0f : fabsf(args.scale) / power;
        }
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j) {
            const u32_t halves = pack_halves(x[j][0] * factor, x[j][1] * factor);
            if (S::HOLDS_Q) {
                held[j / 2][tile][j % 2 * 2 + half] = halves;
            } else if (S::group() == 0) {
                *(u32_t*)shared.q.at(r, j * 8 + column) = halves;
            }
        }
    }

    // Where a lane's rows of the first tile are.
    __device__ SharedAddress address(typename S::Shared& shared) const {
        if (S::HOLDS_Q) return to_shared(shared.q.at(0, 0));
        const u32_t thread = opaque(S::thread()), lane = thread % 32;
        const int row = thread / 32 * S::WARP_ROWS + lane % 16;
        return to_shared(shared.q.at(row, lane / 16 * 8));
    }

    // Elements 16 i to 16 i + 15 of the warp's rows.
    __device__ void get(SharedAddress at, int i, u32_t (&a)[S::TILES][4]) const {
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
            if (S::HOLDS_Q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) a[tile][j] = held[i][tile][j];
            } else {
                ldmatrix_x4(a[tile], column_16(at, i) + tile * 16 * 2 * S::N);
            }
        }
    }
};

// Adds q k^T.
template <class S>
__device__ void multiply_keys(typename S::Shared& shared, Rows<S::N, S::CELLS>& tile_k,
                              const Queries<S>& q, int d, Scores<S>& s) {
    const u32_t lane = opaque(threadIdx.x) % 32u;
    const SharedAddress k = to_shared(tile_k.at(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
    const SharedAddress rows = q.address(shared);
    constexpr int AT_ONCE = S::N <= 128 ? S::N / 16 : 2;
#pragma unroll AT_ONCE
    for (int i = 0; i < S::N / 16; ++i) {
        if (!S::EXACT && i * 16 >= d) break;
        u32_t a[S::TILES][4];
        q.get(rows, i, a);
#pragma unroll
        for (int j = 0; j < S::CELLS / 16; ++j) {
            u32_t b[4];
            ldmatrix_x4(b, column_16(k, i) + j * 16 * 2 * S::N);
#pragma unroll
            for (int tile = 0; tile < S::TILES; ++tile) {
                mma_f16(s.v[tile][2 * j], a[tile], {b[0], b[1]});
                mma_f16(s.v[tile][2 * j + 1], a[tile], {b[2], b[3]});
            }
        }
    }
}

// Caps the scores of a row of a lane.
template <class S>
__device__ void cap_scores(float cap, float scale, int half, float (&s)[S::CELLS / 8][4]) {
    const float factor = 2.0f * LOG2_E / cap;
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) s[j][e] = capped(s[j][e] * scale, cap, factor);
    }
}

// Adds the mask of a row, and hides what the row does not see. A mask of 0 leaves a score as it is.
template <class S>
__device__ void hide_scores(const Args& args, const typename S::Shared& shared, int row, int place,
                            int half, float (&s)[S::CELLS / 8][4]) {
    const RowTable<S::ROWS>& table = shared.rows;
    const int at = place + (int)threadIdx.x % 4 * 2 - table.first[row];
    const int n = table.end[row] - table.first[row];
    if (const u16_t* mask = table.masks[row]) {
        const float slope = table.slopes[row] / unit_of<S>(args, shared, row);
#pragma unroll
        for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int i = at + j * 8 + e;
                if ((u32_t)i >= (u32_t)n) continue;
                float& score = s[j][2 * half + e];
                const u16_t bias = mask[i];
                const bool hidden = bias == HALF_MINUS_INFINITY;
                score = hidden ? minus_infinity() : fmaf(half_to_float(bias), slope, score);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const bool seen = (u32_t)(at + j * 8 + e) < (u32_t)n;
            s[j][2 * half + e] = seen ? s[j][2 * half + e] : minus_infinity();
        }
    }
}

// Makes weights of the finished scores of a row of a lane. Returns what the sums of the chunk are to be
// multiplied by.
template <class S>
__device__ float weigh_row(float exponent, int half, float (&s)[S::CELLS / 8][4], float& largest) {
    float found = s[0][2 * half];
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
        found = fmaxf(found, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
    }
    const float before = largest;
    largest = fmaxf(before, quad_max(found));
    const float reference = reference_of(largest);
    const float shift = fmaf(-reference, exponent, (float)UNIT_LOG2);
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[j][e] = power_of_2(fmaf(s[j][e], exponent, shift));
        }
    }
    return power_of_2((before - reference) * exponent);
}

// Finishes scores, and makes weights of them; rescales what the chunk has.
template <class S>
__device__ void weigh(const Args& args, const typename S::Shared& shared, int place, bool sees_all,
                      Scores<S>& s, Sums<S>& sums) {
    const float cap = args.logit_softcap;
    if (cap != 0.0f || !sees_all) {
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = S::row_of_lane(tile, half);
                if (cap != 0.0f) cap_scores<S>(cap, shared.scales[row], half, s.v[tile]);
                if (!sees_all) hide_scores<S>(args, shared, row, place, half, s.v[tile]);
            }
        }
    }
    float rescale[S::TILES][2];
    bool grew = false;
#pragma unroll
    for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float exponent = unit_of<S>(args, shared, S::row_of_lane(tile, half)) * LOG2_E;
            rescale[tile][half] = weigh_row<S>(exponent, half, s.v[tile], sums.largest[tile][half]);
            grew = grew || rescale[tile][half] != 1.0f;
        }
    }
    if (!__any_sync(ALL_LANES, grew)) return;
#pragma unroll
    for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.weights[tile][e] *= rescale[tile][e / 2];
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums.v[tile][j][e] *= rescale[tile][e / 2];
        }
    }
}
