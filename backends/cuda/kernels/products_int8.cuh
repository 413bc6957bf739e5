// Products with quantised weights: codes of weights and of x are multiplied as whole numbers.
//
// x is rounded to codes from -127 to 127 with a scale for 32 elements. The products of 32 (or 16) codes
// are summed exactly by an mma and then scaled, in f32 from front to back:
//
//     sum = fmaf(d_weight * sum of code * code, d_x, sum)
//     sum = fmaf(m_weight, d_x * sum of x's codes, sum)       with an offset m
//
//   a chunk of x, 256 elements   codes 256 x i8 | d 8 x f32 | d * sum of 32 codes 8 x f32 |
//                                sums of 16 codes 16 x i16                                   352 bytes
//
// Of 32 elements, codes lie as lanes of an mma read them: elements 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3
// are the 8 bytes from 8t on.
#pragma once
#include "int8_blocks.cuh"
#include "products.cuh"

// Elements of a block of 32, for d and codes as Rounding.INT8X32 says.
struct Rounder {
    float d;
    float inverse;  // of d, or 0
    bool is_right;  // else all codes are 0, and d is 0 or NaN

    // `most`: the bits of the largest |x|. They are in the order of |x|, with NaN above infinity.
    __device__ Rounder(u32_t most) {
        is_right = most >= 8u << 23 && most < 0x7f800000u;  // from 2^-119 on d is not denormal
        const float amax = __uint_as_float(most);
        d = is_right ? amax / 127.0f : most < 0x7f800000u ? 0.0f : __uint_as_float(0x7fc00000u);
        inverse = is_right ? 127.0f / amax : 0.0f;
    }

    __device__ int code(float x) const { return is_right ? __float2int_rn(x * inverse) : 0; }
};

// The codes of four elements, and their sum.
__device__ inline u32_t four_codes(const Rounder& rounder, float4 x, int& sum) {
    const int q[4] = {rounder.code(x.x), rounder.code(x.y), rounder.code(x.z), rounder.code(x.w)};
    sum = q[0] + q[1] + q[2] + q[3];
    return (q[0] & 255) | (q[1] & 255) << 8 | (q[2] & 255) << 16 | (u32_t)q[3] << 24;
}

__device__ inline u32_t most_of_four(float4 x) {
    return max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
               max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
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

    // Bytes of a row that chunk `chunk` lacks.
    __device__ static int missing_bytes(int chunk, int k) {
        return Q::BLOCK == CHUNK ? 0 : (CHUNK / Q::BLOCK - n_blocks(chunk, k) * 32 / Q::BLOCK) * Q::BYTES;
    }

    // The two rows of a lane, in memory and in shared memory.
    struct Rows {
        const char* base[2];  // rounded down to 16 bytes
        int within[2];        // from there to the row

        __device__ Rows(const TwoRows& rows) {
            for (int i = 0; i < 2; ++i) {
                within[i] = (int)((size_t)rows.at[i] & 15);
                base[i] = rows.at[i] - within[i];
            }
        }

        // Where a chunk of row i begins, from base[i] on.
        __device__ int start(int i, int chunk) const { return within[i] + chunk * ROW_BYTES; }

        // And within its 16 bytes.
        __device__ int within_of(int i, int chunk) const {
            return ROW_BYTES % 16 == 0 ? within[i] : start(i, chunk) & 15;
        }

        __device__ const u8_t* in_shared(const char* shared, int i, int chunk, Lane lane) const {
            return (const u8_t*)shared + (lane.g + 8 * i) * PITCH + within_of(i, chunk);
        }
    };

    // Starts the copies of a chunk of 16 rows, which lie `moved` bytes further on, by a warp.
    __device__ static void load_rows(
        char* shared, const Rows& rows, i64_t moved, int chunk, int k, bool is_aligned, Lane lane
    ) {
        const int n_bytes = ROW_BYTES - missing_bytes(chunk, k);
        if (!is_aligned) {
            copy_rows(shared, rows, moved, chunk, n_bytes, lane);
            return;
        }
        const SharedAddress to = to_shared(shared) + lane.g * PITCH + lane.t * 16;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int within = rows.within_of(i, chunk);
            const char* from = rows.base[i] + moved + (rows.start(i, chunk) - within + lane.t * 16);
            const int rest = n_bytes + within - lane.t * 16;
#pragma unroll
            for (int at = 0; at < ROW_BYTES + 15; at += 64) {
                if (at < rest) copy_async_16(to + 8 * i * PITCH + at, from + at);
            }
        }
    }

    // The same for weights that may not be copied by 16 bytes.
    __device__ static void copy_rows(
        char* shared, const Rows& rows, i64_t moved, int chunk, int n_bytes, Lane lane
    ) {
        for (int i = 0; i < 2; ++i) {
            const char* from = rows.base[i] + moved + rows.start(i, chunk);
            char* to = (char*)rows.in_shared(shared, i, chunk, lane);
            if (Q::ALIGN == 1) {  // whole words are read
                u32_t* row = (u32_t*)(shared + (lane.g + 8 * i) * PITCH);
                for (int at = lane.t; at < PITCH / 4; at += 4) row[at] = 0;
                __syncwarp();
            }
#pragma unroll 1
            for (int at = lane.t * Q::ALIGN; at < n_bytes; at += 4 * Q::ALIGN) {
                if (Q::ALIGN == 4) *(u32_t*)(to + at) = *(const u32_t*)(from + at);
                if (Q::ALIGN == 2) *(u16_t*)(to + at) = *(const u16_t*)(from + at);
                if (Q::ALIGN == 1) to[at] = from[at];
            }
        }
    }

    // Rounds the chunk of x from `from` on, of which there are `n` elements or more; a warp.
    __device__ static void round_x(char* to, const float* from, int n, Lane lane) {
        const int first = lane.g * 32 + lane.t * 4;
        const bool is_inside = lane.g * 32 < n;
        const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float4 a = is_inside ? *(const float4*)(from + first) : zeros;
        const float4 b = is_inside ? *(const float4*)(from + first + 16) : zeros;
        u32_t most = max(most_of_four(a), most_of_four(b));
        for (int t = 1; t < 4; t *= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, t));
        const Rounder rounder(most);
        int of_a, of_b;
        const uint2 codes = make_uint2(four_codes(rounder, a, of_a), four_codes(rounder, b, of_b));
        for (int t = 1; t < 4; t *= 2) {
            of_a += __shfl_xor_sync(ALL_LANES, of_a, t);
            of_b += __shfl_xor_sync(ALL_LANES, of_b, t);
        }
        *(uint2*)(to + lane.g * 32 + lane.t * 8) = codes;
        if (lane.t == 0) {
            char* numbers = to + CHUNK + lane.g * 4;
            *(float*)numbers = rounder.d;
            *(float*)(numbers + 32) = rounder.d * (float)(of_a + of_b);
            *(u32_t*)(numbers + 64) = (of_a & 0xffff) | (u32_t)of_b << 16;
        }
    }

    // --- few columns: chunks of x as they are, which puts columns in different banks ---

    static constexpr int FEW_PITCH = X_BYTES;

    // sums += a chunk of 16 rows times `n` columns.
    __device__ static void multiply_few(
        float (&sums)[1][4], const char* shared_rows, const char* shared_x, int n, const Rows& rows,
        int chunk, int k, Lane lane
    ) {
        const u8_t* const row[2] = {
            rows.in_shared(shared_rows, 0, chunk, lane), rows.in_shared(shared_rows, 1, chunk, lane)
        };
        const char* codes = shared_x + min(lane.g, n - 1) * FEW_PITCH + lane.t * 8;
        const char* numbers[2];
        for (int c = 0; c < 2; ++c) {
            numbers[c] = shared_x + min(lane.t * 2 + c, n - 1) * FEW_PITCH + CHUNK;
        }
        const int n_here = n_blocks(chunk, k);
        if (Q::BLOCK == CHUNK || n_here == CHUNK / 32) {
            if (n == 1) {
                multiply_chunk<1>(sums[0], row, codes, numbers, lane);
            } else {
                multiply_chunk<2>(sums[0], row, codes, numbers, lane);
            }
        } else if constexpr (Q::BLOCK < CHUNK) {
#pragma unroll 1
            for (int i = 0; i < n_here; ++i) {
                XFragment x = {*(const uint2*)(codes + i * 32), {}, {}, {}};
                for (int c = 0; c < 2; ++c) {
                    x.d[c] = *(const float*)(numbers[c] + i * 4);
                    x.scaled_sum[c] = *(const float*)(numbers[c] + 32 + i * 4);
                    x.sums[c] = *(const u32_t*)(numbers[c] + 64 + i * 4);
                }
                add_product<Q, true>(sums[0], Fragment<Q>(row, i, lane.t, true), x);
            }
        }
    }

    // A whole chunk, of which 16 bytes of numbers serve four blocks.
    template <int C>
    __device__ static void multiply_chunk(
        float (&sum)[4], const u8_t* const (&row)[2], const char* codes, const char* const (&numbers)[2],
        Lane lane
    ) {
#pragma unroll
        for (int four = 0; four < 2; ++four) {
            float4 d[C], s[C];
            uint4 of_16[C];
            for (int c = 0; c < C; ++c) {
                d[c] = *(const float4*)(numbers[c] + four * 16);
                s[c] = *(const float4*)(numbers[c] + 32 + four * 16);
                of_16[c] = *(const uint4*)(numbers[c] + 64 + four * 16);
            }
            const uint2* b = (const uint2*)(codes + four * 4 * 32);
            const auto add = [&](int i, const XFragment& x) {
                const Fragment<Q> w(row, four * 4 + i, lane.t, true);
                add_product<Q, true, C>(sum, w, x);
            };
            constexpr int L = C - 1;  // the last column
            add(0, {b[0], {d[0].x, d[L].x}, {s[0].x, s[L].x}, {of_16[0].x, of_16[L].x}});
            add(1, {b[4], {d[0].y, d[L].y}, {s[0].y, s[L].y}, {of_16[0].y, of_16[L].y}});
            add(2, {b[8], {d[0].z, d[L].z}, {s[0].z, s[L].z}, {of_16[0].z, of_16[L].z}});
            add(3, {b[12], {d[0].w, d[L].w}, {s[0].w, s[L].w}, {of_16[0].w, of_16[L].w}});
        }
    }

    // --- one column: lane (g, t) has blocks 2t and 2t + 1 of rows g and g + 8 ---
    //
    // Each block of a row is unpacked and scaled by one lane. Sums go around the four lanes of a row in
    // the order of blocks: a turn later, lane t has what lane t - 1 had. Only that of lane t in turn t
    // is right, and after the last turn that of lane 3.

    static constexpr int ONE_LANE = 3;

    __device__ static void multiply_one(
        float (&sums)[4], const char* shared_rows, const char* shared_x, const Rows& rows, int chunk,
        int k, Lane lane
    ) {
        const int n_here = n_blocks(chunk, k);
        const bool is_whole = Q::BLOCK == CHUNK || n_here == CHUNK / 32;
        Terms<Q> terms[2][2];  // of blocks, and of rows
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int block = 2 * lane.t + i;
            if (!is_whole && block >= n_here) continue;
            const OneBlock x(shared_x, block);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const u8_t* row = rows.in_shared(shared_rows, r, chunk, lane);
                terms[i][r] = x.template times<Q>(row, block);
            }
        }
        const int before = threadIdx.x % 32 / 4 * 4 + (lane.t + 3) % 4;
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float sum = __shfl_sync(ALL_LANES, sums[2 * r], before);
                for (int i = 0; i < 2; ++i) {
                    if (is_whole || 2 * lane.t + i < n_here) sum = terms[i][r].added_to(sum);
                }
                sums[2 * r] = sum;
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
        const SharedAddress codes = to_shared(shared) + threadIdx.x % 16 * 16;
        const int from = chunk * X_BYTES + threadIdx.x % 16 * 16;
#pragma unroll
        for (int i = 0; i < MOST_COLUMNS; i += PRODUCT_THREADS / 16) {
            const int column = i + threadIdx.x / 16;
            if (column >= n) break;
            copy_async_16(codes + column * CODES_PITCH, columns_of_x[column] + from);
        }
        const int number = threadIdx.x % NUMBERS;
        const SharedAddress numbers =
            to_shared(shared) + columns * CODES_PITCH + number * columns * 4;
        const int from_number = chunk * X_BYTES + CHUNK + (number < 8 ? number : number + SECOND - 8) * 4;
#pragma unroll
        for (int i = 0; i < MOST_COLUMNS; i += PRODUCT_THREADS / NUMBERS) {
            const int column = i + threadIdx.x / NUMBERS;
            if (column >= n) break;
            copy_async_4(numbers + column * 4, columns_of_x[column] + from_number);
        }
    }

    // A warp has 16 rows and all columns, so that it unpacks weights for as many as there are.
    static constexpr int MANY_STAGES = 2;
    static constexpr int WARP_GROUPS = 1;

    // Columns of tile 0 on; a warp has all of them.
    __device__ static int tiles_bytes(int first_tile) { return first_tile * COLUMNS * CODES_PITCH; }

    // sums += a chunk of a group of 16 rows times tiles of 8 columns.
    template <int N>
    __device__ static void multiply_many(
        float (&sums)[N][4], const char* const (&groups)[1], const char* shared_x, int columns,
        int n_tiles, const Rows& rows, int chunk, int k, Lane lane
    ) {
        const u8_t* const row[2] = {
            rows.in_shared(groups[0], 0, chunk, lane), rows.in_shared(groups[0], 1, chunk, lane)
        };
        const char* codes = shared_x + lane.g * CODES_PITCH + lane.t * 8;
        const char* numbers = shared_x + columns * CODES_PITCH + lane.t * 8;
#pragma unroll 1
        for (int block = 0; block < n_blocks(chunk, k); ++block) {
            const Fragment<Q> w(row, block, lane.t, false);
            const char* d = numbers + block * columns * 4;
            const char* second = d + 8 * columns * 4;
            each_tile<N>(n_tiles, [&](int tile) {
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
                add_product<Q, false>(sums[tile], w, x);
            });
            codes += 32;
        }
    }
};
