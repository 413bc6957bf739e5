// Products with quantised weights: codes of weights and of x are multiplied as whole numbers.
//
// x is rounded to codes from -127 to 127 with a scale for 32 elements. The products of 32 (or 16) codes
// are summed exactly by an mma and then scaled, in f32 from front to back:
//
//     sum = fmaf(d_weight * d_x, sum of code * code, sum)
//     sum = fmaf(m_weight, d_x * sum of x's codes, sum)       with an offset m
//
//   a chunk of x, 256 elements   codes 256 x i8 | d 8 x f32 | d * (sum of 16 codes) 16 x f32   352 bytes
//
// Of 32 elements, codes lie as lanes of an mma read them: elements 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3
// are the 8 bytes from 8t on.
#pragma once
#include "mma.cuh"
#include "products.cuh"
#include "quants.cuh"

template <class Q>
struct Int8 {
    static constexpr int CHUNK = 256;
    static constexpr int X_BYTES = 352;  // of a chunk of x

    // Rows of weights in shared memory, at the same place in 16 bytes as in the weights. An odd number of
    // 16 bytes apart: 8 rows of 4 lanes lie in different banks.
    static constexpr int ROW_BYTES = CHUNK / Q::BLOCK * Q::BYTES;
    static constexpr int PITCH = ((ROW_BYTES + 15 + 15) / 16 | 1) * 16;
    static constexpr int WARP_BYTES = WARP_ROWS * PITCH;

    // Columns in shared memory: their codes, and behind those of all columns 16 bytes of each column of
    // the scales for 4 blocks, and so on.
    static constexpr int CODES_PITCH = 256 + 32;
    static constexpr int PIECES = 16 + 2 + (Q::OFFSET ? 4 : 0);  // of 16 bytes
    static constexpr int COLUMN_BYTES = CODES_PITCH + (PIECES - 16) * 16;

    __device__ static int place(int column, int piece, int columns) {
        if (piece < 16) return column * CODES_PITCH + piece * 16;
        return columns * CODES_PITCH + ((piece - 16) * columns + column) * 16;
    }

    // Bytes of a row from chunk `chunk` on, in rows of `k` elements.
    __device__ static int bytes_of(int chunk, int k) {
        return min((int)CHUNK, k - chunk * CHUNK) / Q::BLOCK * Q::BYTES;
    }

    // Starts the copies of a chunk of 16 rows by a warp.
    __device__ static void load_rows(
        char* shared, const TwoRows& rows, int chunk, int k, bool is_aligned, Lane lane
    ) {
        const int n_bytes = bytes_of(chunk, k);
        for (int i = 0; i < 2; ++i) {
            const char* from = rows.at[i] + (i64_t)chunk * ROW_BYTES;
            char* to = shared + (lane.g + 8 * i) * PITCH;
            const int within = (int)((size_t)from & 15);
            if (is_aligned) {
                from -= within;
                for (int at = lane.t * 16; at < within + n_bytes; at += 64) {
                    const i64_t rest = rows.end - (from + at);
                    copy_async_16_part(to + at, from + at, (int)max(0ll, min(16ll, rest)));
                }
            } else {
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

    // acc += a chunk of 16 rows times 8 * N columns, of which those of numbers below `n` are wanted.
    template <int N>
    __device__ static void multiply(
        float (&acc)[N][4], const char* shared_rows, const char* shared_x, int columns, int n,
        const TwoRows& rows, int chunk, int k, Lane lane
    ) {
        const u8_t* row[2];
        for (int i = 0; i < 2; ++i) {
            const int within = (int)((size_t)(rows.at[i] + (i64_t)chunk * ROW_BYTES) & 15);
            row[i] = (const u8_t*)shared_rows + (lane.g + 8 * i) * PITCH + within;
        }
        const int n_blocks = min((int)CHUNK, k - chunk * CHUNK) / 32;
#pragma unroll 1
        for (int block = 0; block < n_blocks; ++block) {
            multiply_block<N>(acc, row, shared_x, columns, n, block, lane);
        }
    }

    // Block `block` of 32 elements of the chunk.
    template <int N>
    __device__ static void multiply_block(
        float (&acc)[N][4], const u8_t* const (&row)[2], const char* shared_x, int columns, int n,
        int block, Lane lane
    ) {
        constexpr int PER = Q::BLOCK / 32, GROUPS = 32 / Q::GROUP;
        u32_t a[4];
        Scale scale[GROUPS][2];
        for (int i = 0; i < 2; ++i) {
            const u8_t* b = row[i] + block / PER * Q::BYTES;
            const int run = block % PER;
            a[i] = Q::codes(b, run * 8 + lane.t);
            a[2 + i] = Q::codes(b, run * 8 + 4 + lane.t);
            for (int j = 0; j < GROUPS; ++j) scale[j][i] = Q::scale(b, run * GROUPS + j);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (N > 1 && i * COLUMNS >= n) break;
            const int column = i * COLUMNS;
            const int of_b = min(column + lane.g, n - 1);
            const uint2 b = *(const uint2*)(shared_x + of_b * CODES_PITCH + block * 32 + lane.t * 8);
            int of_d[2];
            float d[2];
            for (int c = 0; c < 2; ++c) {
                of_d[c] = min(column + lane.t * 2 + c, n - 1);
                d[c] = *(const float*)(
                    shared_x + place(of_d[c], 16 + block / 4, columns) + block % 4 * 4
                );
            }
            if (GROUPS == 1) {
                int sums[4] = {0, 0, 0, 0};
                mma_s8_k32(sums, a, {b.x, b.y});
                add_scaled(acc[i], sums, scale[0], d);
            } else {
                for (int j = 0; j < GROUPS; ++j) {
                    int sums[4] = {0, 0, 0, 0};
                    mma_s8_k16(sums, {a[2 * j], a[2 * j + 1]}, {j == 0 ? b.x : b.y});
                    add_scaled(acc[i], sums, scale[j], d);
                }
            }
            if (Q::OFFSET) {
                for (int c = 0; c < 2; ++c) {
                    const float2 s = *(const float2*)(
                        shared_x + place(of_d[c], 18 + block / 2, columns) + block % 2 * 8
                    );
                    for (int r = 0; r < 2; ++r) {
                        float& sum = acc[i][2 * r + c];
                        if (GROUPS == 1) {
                            sum = fmaf(scale[0][r].m, s.x + s.y, sum);
                        } else {
                            sum = fmaf(scale[0][r].m, s.x, sum);
                            sum = fmaf(scale[GROUPS - 1][r].m, s.y, sum);
                        }
                    }
                }
            }
        }
    }

    __device__ static void add_scaled(
        float (&acc)[4], const int (&sums)[4], const Scale (&scale)[2], const float (&d)[2]
    ) {
        for (int r = 0; r < 2; ++r) {
            for (int c = 0; c < 2; ++c) {
                float& sum = acc[2 * r + c];
                sum = fmaf(scale[r].d * d[c], (float)sums[2 * r + c], sum);
            }
        }
    }
};
