// Products with quantised weights: codes of weights and of x are multiplied as whole numbers.
//
// x is rounded to codes from -127 to 127 with a scale for 32 elements. The products of 32 (or 16) codes
// are summed exactly by an mma and then scaled, in f32 from front to back:
//
//     sum = fmaf(d_weight * d_x, sum of code * code, sum)
//     sum = fmaf(m_weight, d_x * sum of x's codes, sum)       with an offset m
//
//   a chunk of x, 256 elements   codes 256 x i8 | d 8 x f32 | d * sum of 32 codes 8 x f32 |
//                                sums of 16 codes 16 x i16                                   352 bytes
//
// Of 32 elements, codes lie as lanes of an mma read them: elements 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3
// are the 8 bytes from 8t on.
#pragma once
#include "mma.cuh"
#include "products.cuh"
#include "quants.cuh"

// The low half of `pair` times the low byte of `bytes`, and the high half times the byte above it.
__device__ inline int dot_of_2(u32_t pair, u32_t bytes) {
#ifdef GGMLPY_EMULATED
    return (short)pair * (i8_t)bytes + (short)(pair >> 16) * (i8_t)(bytes >> 8);
#else
    int sum;
    asm("dp2a.lo.s32.s32 %0, %1, %2, 0;" : "=r"(sum) : "r"(pair), "r"(bytes));
    return sum;
#endif
}

// 32 elements of the two rows of a lane.
template <class Q>
struct Fragment {
    static constexpr int GROUPS = 32 / Q::GROUP;
    static constexpr int PER = Q::BLOCK / 32;
    u32_t a[4];  // of an mma
    Scale scale[GROUPS][2];

    // Block `i` of 32 elements from `row` on. `raw` codes are ZERO too large.
    __device__ Fragment(const u8_t* const (&row)[2], int i, int t, bool raw) {
        for (int r = 0; r < 2; ++r) {
            const u8_t* b = row[r] + i / PER * Q::BYTES;
            const int first = i % PER * 8 + t;
            a[r] = raw ? Q::raw(b, first) : Q::codes(b, first);
            a[2 + r] = raw ? Q::raw(b, first + 4) : Q::codes(b, first + 4);
            for (int j = 0; j < GROUPS; ++j) scale[j][r] = Q::scale(b, i % PER * GROUPS + j);
        }
    }
};

// 32 elements of columns: of column g its codes, of columns 2t and 2t + 1 the scales and sums.
struct XFragment {
    uint2 codes;
    float d[2];
    float scaled_sum[2];
    u32_t sums[2];  // of elements 0 to 15, and 16 to 31
};

// sum += 32 elements of rows times those of columns.
template <class Q, bool RAW>
__device__ inline void add_product(float (&sum)[4], const Fragment<Q>& w, const XFragment& x) {
    constexpr int GROUPS = Fragment<Q>::GROUPS;
    for (int j = 0; j < GROUPS; ++j) {
        const u32_t ones = GROUPS == 1 ? 0x0101 : j == 0 ? 0x0001 : 0x0100;
        int products[4] = {0, 0, 0, 0};
        if (RAW && Q::ZERO != 0) {  // what the codes are too large, times those of x
            for (int i = 0; i < 4; ++i) {
                products[i] = dot_of_2(x.sums[i % 2], ones * (u32_t)(256 - Q::ZERO));
            }
        }
        if (GROUPS == 1) {
            mma_s8_k32(products, w.a, {x.codes.x, x.codes.y});
        } else {
            mma_s8_k16(products, {w.a[2 * j], w.a[2 * j + 1]}, {j == 0 ? x.codes.x : x.codes.y});
        }
        for (int i = 0; i < 4; ++i) {
            sum[i] = fmaf(w.scale[j][i / 2].d * x.d[i % 2], (float)products[i], sum[i]);
        }
        if (Q::OFFSET) {
            for (int i = 0; i < 4; ++i) {
                const float of_group = x.d[i % 2] * (float)dot_of_2(x.sums[i % 2], ones);
                const float scaled = GROUPS == 1 ? x.scaled_sum[i % 2] : of_group;
                sum[i] = fmaf(w.scale[j][i / 2].m, scaled, sum[i]);
            }
        }
    }
}

template <class Q>
struct Int8 {
    static constexpr int CHUNK = 256;
    static constexpr int X_BYTES = 352;  // of a chunk of x

    // Rows of weights in shared memory, at the same place in 16 bytes as in the weights. An odd number of
    // 16 bytes apart: 8 rows of 4 lanes lie in different banks.
    static constexpr int ROW_BYTES = CHUNK / Q::BLOCK * Q::BYTES;
    static constexpr int PITCH = ((ROW_BYTES + 15 + 15) / 16 | 1) * 16;
    static constexpr int WARP_BYTES = WARP_ROWS * PITCH;

    __device__ static int n_blocks(int chunk, int k) {
        return min((int)CHUNK, k - chunk * CHUNK) / 32;
    }

    // Starts the copies of a chunk of 16 rows by a warp.
    __device__ static void load_rows(
        char* shared, const TwoRows& rows, int chunk, int k, bool is_aligned, Lane lane
    ) {
        const int n_bytes = n_blocks(chunk, k) * 32 / Q::BLOCK * Q::BYTES;
        for (int i = 0; i < 2; ++i) {
            const char* from = rows.at[i] + (i64_t)chunk * ROW_BYTES;
            const int within = (int)((size_t)from & 15);
            char* to = shared + (lane.g + 8 * i) * PITCH;
            if (is_aligned) {
                from += lane.t * 16 - within;
                to += lane.t * 16;
                const int rest = n_bytes + within - lane.t * 16;
#pragma unroll
                for (int at = 0; at < ROW_BYTES + 15; at += 64) {
                    if (at < rest) copy_async_16(to + at, from + at);
                }
            } else {
#pragma unroll 1
                for (int at = lane.t * Q::ALIGN; at < n_bytes; at += 4 * Q::ALIGN) {
                    copy_unit(to + within + at, from + at);
                }
            }
        }
    }

    __device__ static void copy_unit(char* to, const char* from) {
        if (Q::ALIGN == 4) *(u32_t*)to = *(const u32_t*)from;
        if (Q::ALIGN == 2) *(u16_t*)to = *(const u16_t*)from;
        if (Q::ALIGN == 1) *to = *from;
    }

    // Where the rows of a lane are in shared memory.
    struct SharedRows {
        const u8_t* at[2];

        __device__ SharedRows(const char* shared, const TwoRows& rows, int chunk, Lane lane) {
            for (int i = 0; i < 2; ++i) {
                const int within = (int)((size_t)(rows.at[i] + (i64_t)chunk * ROW_BYTES) & 15);
                at[i] = (const u8_t*)shared + (lane.g + 8 * i) * PITCH + within;
            }
        }
    };

    // --- few columns: chunks of x as they are, which puts columns in different banks ---

    static constexpr int FEW_PITCH = X_BYTES;

    // sums += a chunk of 16 rows times `n` columns.
    __device__ static void multiply_few(
        float (&sums)[1][4], const char* shared_rows, const char* shared_x, int n, const TwoRows& rows,
        int chunk, int k, Lane lane
    ) {
        const SharedRows row(shared_rows, rows, chunk, lane);
        const char* codes = shared_x + min(lane.g, n - 1) * FEW_PITCH + lane.t * 8;
        const char* scales[2];
        for (int c = 0; c < 2; ++c) {
            scales[c] = shared_x + min(lane.t * 2 + c, n - 1) * FEW_PITCH + CHUNK;
        }
        if (Q::BLOCK == CHUNK || n_blocks(chunk, k) == CHUNK / 32) {
            for (int four = 0; four < 2; ++four) {
                float4 d[2], s[2];
                uint4 of_16[2];
                for (int c = 0; c < 2; ++c) {
                    d[c] = *(const float4*)(scales[c] + four * 16);
                    s[c] = *(const float4*)(scales[c] + 32 + four * 16);
                    of_16[c] = *(const uint4*)(scales[c] + 64 + four * 16);
                }
                const auto add = [&](int i, const XFragment& x) {
                    const Fragment<Q> w(row.at, four * 4 + i, lane.t, true);
                    add_product<Q, true>(sums[0], w, x);
                };
                const uint2* b = (const uint2*)(codes + four * 4 * 32);
                add(0, {b[0], {d[0].x, d[1].x}, {s[0].x, s[1].x}, {of_16[0].x, of_16[1].x}});
                add(1, {b[4], {d[0].y, d[1].y}, {s[0].y, s[1].y}, {of_16[0].y, of_16[1].y}});
                add(2, {b[8], {d[0].z, d[1].z}, {s[0].z, s[1].z}, {of_16[0].z, of_16[1].z}});
                add(3, {b[12], {d[0].w, d[1].w}, {s[0].w, s[1].w}, {of_16[0].w, of_16[1].w}});
            }
        } else if constexpr (Q::BLOCK < CHUNK) {
#pragma unroll 1
            for (int i = 0; i < n_blocks(chunk, k); ++i) {
                XFragment x = {*(const uint2*)(codes + i * 32), {}, {}, {}};
                for (int c = 0; c < 2; ++c) {
                    x.d[c] = *(const float*)(scales[c] + i * 4);
                    x.scaled_sum[c] = *(const float*)(scales[c] + 32 + i * 4);
                    x.sums[c] = *(const u32_t*)(scales[c] + 64 + i * 4);
                }
                add_product<Q, true>(sums[0], Fragment<Q>(row.at, i, lane.t, true), x);
            }
        }
    }

    // --- many columns: the codes of each, and behind those of all a row for each number of scales ---

    static constexpr int CODES_PITCH = CHUNK + 32;
    static constexpr int NUMBERS = Q::OFFSET ? 16 : 8;
    static constexpr int SECOND = Q::OFFSET && Q::GROUP < 32 ? 16 : 8;  // of a chunk's numbers: sums
    static constexpr int COLUMN_BYTES = CODES_PITCH + NUMBERS * 4;

    // Starts the copies of a chunk of `n` columns by a block.
    __device__ static void load_columns(
        char* shared, const char* const* columns_of_x, int columns, int n, int chunk
    ) {
#pragma unroll 4
        for (int i = threadIdx.x; i < n * 16; i += PRODUCT_THREADS) {
            const char* from = columns_of_x[i / 16] + (i64_t)chunk * X_BYTES;
            copy_async_16(shared + i / 16 * CODES_PITCH + i % 16 * 16, from + i % 16 * 16);
        }
        char* numbers = shared + columns * CODES_PITCH;
#pragma unroll 4
        for (int i = threadIdx.x; i < n * NUMBERS; i += PRODUCT_THREADS) {
            const int column = i / NUMBERS, number = i % NUMBERS;
            const char* from = columns_of_x[column] + (i64_t)chunk * X_BYTES + CHUNK;
            const int at = number < 8 ? number : number + SECOND - 8;
            copy_async_4(numbers + (number * columns + column) * 4, from + at * 4);
        }
    }

    // sums += a chunk of 16 rows times tiles of 8 columns.
    template <int N>
    __device__ static void multiply_many(
        float (&sums)[N][4], const char* shared_rows, const char* shared_x, int columns, int n_tiles,
        const TwoRows& rows, int chunk, int k, Lane lane
    ) {
        const SharedRows row(shared_rows, rows, chunk, lane);
        const char* codes = shared_x + lane.g * CODES_PITCH + lane.t * 8;
        const char* numbers = shared_x + columns * CODES_PITCH + lane.t * 8;
#pragma unroll 1
        for (int block = 0; block < n_blocks(chunk, k); ++block) {
            const Fragment<Q> w(row.at, block, lane.t, false);
            const char* d = numbers + block * columns * 4;
            const char* second = d + 8 * columns * 4;
            each_tile(sums, n_tiles, [&](float(&sum)[4], int tile) {
                XFragment x = {*(const uint2*)(codes + tile * COLUMNS * CODES_PITCH), {}, {}, {}};
                const float2 of_two = *(const float2*)(d + tile * COLUMNS * 4);
                x.d[0] = of_two.x;
                x.d[1] = of_two.y;
                if (Q::OFFSET) {
                    const uint2 bits = *(const uint2*)(second + tile * COLUMNS * 4);
                    x.sums[0] = bits.x;
                    x.sums[1] = bits.y;
                    for (int c = 0; c < 2; ++c) x.scaled_sum[c] = __uint_as_float(x.sums[c]);
                }
                add_product<Q, false>(sum, w, x);
            });
            codes += 32;
        }
    }
};
