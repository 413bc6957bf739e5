// Products with weights of floats: f16 and bf16 by tensor cores, with x rounded to the same type; f32 by
// fmaf, with x as it is. Sums are in f32, from front to back.
//
// bf16 has 8 bits: x becomes two of them, itself rounded and the rest rounded, which are multiplied one
// after the other.
//
//   a chunk of x   64 elements of f16, 32 of f32, or twice 64 of bf16; zeros behind the last one
#pragma once
#include "mma.cuh"
#include "products.cuh"

constexpr int FLOAT_CHUNK_BYTES = 128;

template <class T>
struct PartsOfX {
    static constexpr int N = 1;
};
template <>
struct PartsOfX<bf16> {
    static constexpr int N = 2;
};

// What rounding has left of a number; nothing of an infinite one, or of one that became that.
__device__ inline float left_of(float v, float rounded) {
    return isinf(rounded) ? 0.0f : v - rounded;
}

// What f16, bf16 and f32 have in common: rows and columns lie 144 bytes apart in shared memory, so that
// 8 of them lie in different banks.
template <class T>
struct FloatChunks {
    static constexpr int PARTS = PartsOfX<T>::N;
    static constexpr int X_BYTES = PARTS * FLOAT_CHUNK_BYTES;
    static constexpr int X_PITCH = X_BYTES + 16;
    static constexpr int CHUNK = FLOAT_CHUNK_BYTES / T::SIZE;
    static constexpr int PITCH = FLOAT_CHUNK_BYTES + 16;
    static constexpr int WARP_BYTES = WARP_ROWS * PITCH;

    __device__ static int elements(int chunk, int k) { return min((int)CHUNK, k - chunk * CHUNK); }

    typedef TwoRows Rows;

    // Starts the copies of a chunk of 16 rows, which lie `moved` bytes further on, by a warp.
    __device__ static void load_rows(
        char* shared, const TwoRows& rows, i64_t moved, int chunk, int k, bool is_aligned, Lane lane
    ) {
        const int n_bytes = elements(chunk, k) * T::SIZE;
        for (int i = 0; i < 2; ++i) {
            const char* from = rows.at[i] + moved + (chunk * FLOAT_CHUNK_BYTES + lane.t * 16);
            char* to = shared + (lane.g + 8 * i) * PITCH + lane.t * 16;
            const int rest = n_bytes - lane.t * 16;
            const SharedAddress address = to_shared(to);
            if (is_aligned && n_bytes == FLOAT_CHUNK_BYTES) {
                for (int at = 0; at < FLOAT_CHUNK_BYTES; at += 64) {
                    copy_async_16(address + at, from + at);
                }
            } else if (is_aligned) {
                for (int at = 0; at < FLOAT_CHUNK_BYTES; at += 64) {
                    const int n = max(0, min(16, rest - at));
                    copy_async_16_part(address + at, n > 0 ? from + at : from, n);
                }
            } else {
#pragma unroll 1
                for (int at = 0; at < FLOAT_CHUNK_BYTES; at += 64) {
                    copy_elements(to + at, from + at, rest - at);
                }
            }
        }
    }

    // The first `n_bytes` of 16 bytes, and zeros behind them.
    __device__ static void copy_elements(char* to, const char* from, int n_bytes) {
        for (int i = 0; i < 16; i += T::SIZE) {
            if (T::SIZE == 2) *(u16_t*)(to + i) = i < n_bytes ? *(const u16_t*)(from + i) : 0;
            if (T::SIZE == 4) *(u32_t*)(to + i) = i < n_bytes ? *(const u32_t*)(from + i) : 0;
        }
    }
};

__device__ inline void mma_of(f16, float (&d)[4], const u32_t (&a)[4], const u32_t (&b)[2]) {
    mma_f16(d, a, b);
}
__device__ inline void mma_of(bf16, float (&d)[4], const u32_t (&a)[4], const u32_t (&b)[2]) {
    mma_bf16(d, a, b);
}

// sums[G * tile + i] += a chunk of group i of 16 rows times a tile of 8 columns. `column(i)` tells which one
// is number i of a tile.
template <class T>
struct Floats : FloatChunks<T> {
    template <int G, int N, class Column>
    __device__ static void multiply(
        float (&sums)[G * N][4], const char* const (&groups)[G], const char* x, int n_tiles, int chunk,
        int k, Lane lane, Column column
    ) {
        constexpr int PITCH = FloatChunks<T>::PITCH, X_PITCH = FloatChunks<T>::X_PITCH;
        const int in_warp = threadIdx.x % 32;
        // Row i of matrix m by lane 8 m + i: two matrices below each other, then those beside them; of x
        // four matrices of 8 columns by 8 elements beside each other.
        SharedAddress a_rows[G];
        for (int i = 0; i < G; ++i) {
            a_rows[i] = to_shared((void*)groups[i]) + in_warp % 16 * PITCH + in_warp / 16 * 16;
        }
        const SharedAddress b_row =
            to_shared((void*)x) + column(in_warp % 8) * X_PITCH + in_warp / 8 * 16;
        const int n_elements = FloatChunks<T>::elements(chunk, k);
#pragma unroll
        for (int at = 0; at < FloatChunks<T>::CHUNK; at += 32) {
            if (at >= n_elements) break;
            u32_t a[G][2][4];
            for (int i = 0; i < G; ++i) {
                ldmatrix_x4(a[i][0], a_rows[i] + at * T::SIZE);
                ldmatrix_x4(a[i][1], a_rows[i] + (at + 16) * T::SIZE);
            }
            each_tile<N>(n_tiles, [&](int tile) {
                for (int part = 0; part < FloatChunks<T>::PARTS; ++part) {
                    u32_t b[4];
                    const int of_part = part * FLOAT_CHUNK_BYTES + at * T::SIZE;
                    ldmatrix_x4(b, b_row + tile * COLUMNS * X_PITCH + of_part);
                    for (int i = 0; i < G; ++i) {
                        mma_of(T(), sums[G * tile + i], a[i][0], {b[0], b[1]});
                        mma_of(T(), sums[G * tile + i], a[i][1], {b[2], b[3]});
                    }
                }
            });
        }
    }
};

template <>
struct Floats<f32> : FloatChunks<f32> {
    template <int G, int N, class Column>
    __device__ static void multiply(
        float (&sums)[G * N][4], const char* const (&groups)[G], const char* x, int n_tiles, int chunk,
        int k, Lane lane, Column column
    ) {
        const char* columns[2];
        for (int c = 0; c < 2; ++c) columns[c] = x + column(lane.t * 2 + c) * X_PITCH;
        const int n_elements = elements(chunk, k);
#pragma unroll 1
        for (int at = 0; at < n_elements; at += 4) {
            float4 a[G][2];
            for (int i = 0; i < G; ++i) {
                const char* row = groups[i] + lane.g * PITCH + at * 4;
                a[i][0] = *(const float4*)row;
                a[i][1] = *(const float4*)(row + 8 * PITCH);
            }
            each_tile<N>(n_tiles, [&](int tile) {
                for (int c = 0; c < 2; ++c) {
                    const float4 b = *(const float4*)(columns[c] + tile * COLUMNS * X_PITCH + at * 4);
                    for (int i = 0; i < G; ++i) {
                        add_four(sums[G * tile + i][c], a[i][0], b);
                        add_four(sums[G * tile + i][2 + c], a[i][1], b);
                    }
                }
            });
        }
    }

    __device__ static void add_four(float& sum, float4 a, float4 b) {
        sum = fmaf(a.x, b.x, sum);
        sum = fmaf(a.y, b.y, sum);
        sum = fmaf(a.z, b.z, sum);
        sum = fmaf(a.w, b.w, sum);
    }
};

// What products_few.cuh and products_many.cuh call.
template <class T>
struct FloatProduct : Floats<T> {
    static constexpr int FEW_PITCH = FloatChunks<T>::X_PITCH;
    static constexpr int COLUMN_BYTES = FloatChunks<T>::X_PITCH;

    __device__ static void multiply_few(
        float (&sums)[1][4], const char* shared_rows, const char* shared_x, int n, const TwoRows&,
        int chunk, int k, Lane lane
    ) {
        const char* const groups[1] = {shared_rows};
        const auto column = [n](int i) { return min(i, n - 1); };
        Floats<T>::template multiply<1, 1>(sums, groups, shared_x, 1, chunk, k, lane, column);
    }

    static constexpr int ONE_LANE = 0;  // t of the lanes that have sums of one column, 0 and 2

    __device__ static void multiply_one(
        float (&sums)[4], const char* shared_rows, const char* shared_x, const TwoRows& rows, int chunk,
        int k, Lane lane
    ) {
        float all[1][4] = {{sums[0], sums[1], sums[2], sums[3]}};
        multiply_few(all, shared_rows, shared_x, 1, rows, chunk, k, lane);
        for (int j = 0; j < 4; ++j) sums[j] = all[0][j];
    }

    // Rounds the chunk of x from `from` on, of which there are `n` elements or more; a warp.
    __device__ static void round_x(char* to, const float* from, int n, Lane lane) {
        constexpr int CHUNK = FloatChunks<T>::CHUNK;
        for (int i = threadIdx.x % 32; i < CHUNK; i += 32) {
            float rest = i < n ? from[i] : 0.0f;
            for (int part = 0; part < FloatChunks<T>::PARTS; ++part) {
                T::store(to, part * CHUNK + i, rest);
                rest = left_of(rest, T::load(to, part * CHUNK + i));
            }
        }
    }

    // Starts the copies of a chunk of `n` columns by a block.
    __device__ static void load_columns(
        char* shared, const char* const* columns_of_x, int columns, int n, int chunk
    ) {
        constexpr int X_BYTES = FloatChunks<T>::X_BYTES, PIECES = X_BYTES / 16;
        const SharedAddress to = to_shared(shared);
        const int at = threadIdx.x % PIECES * 16;
#pragma unroll
        for (int i = 0; i < MOST_COLUMNS; i += PRODUCT_THREADS / PIECES) {
            const int column = i + threadIdx.x / PIECES;
            if (column >= n) break;
            const char* from = columns_of_x[column] + (chunk * X_BYTES + at);
            copy_async_16(to + column * FloatChunks<T>::X_PITCH + at, from);
        }
    }

    // A warp has 32 rows and half of the columns: what it reads of shared memory serves two products.
    static constexpr int MANY_STAGES = 4;
    static constexpr int WARP_GROUPS = 2;

    // Where the columns of a tile are.
    __device__ static int tiles_bytes(int first_tile) {
        return first_tile * COLUMNS * FloatChunks<T>::X_PITCH;
    }

    template <int N>
    __device__ static void multiply_many(
        float (&sums)[N][4], const char* const (&groups)[2], const char* shared_x, int columns,
        int n_tiles, const TwoRows&, int chunk, int k, Lane lane
    ) {
        const auto column = [](int i) { return i; };
        Floats<T>::template multiply<2, N / 2>(
            sums, groups, shared_x, n_tiles, chunk, k, lane, column
        );
    }
};
