// Reductions of rows and of whole tensors, and prefix sums.
//
// What is one row, or a part of one, is added up by a team; see reduce_rows.cuh. Whole tensors are
// reduced in two launches: blocks to one number each, and those to the result.
#include "reduce_rows.cuh"
#include "sort_keys.cuh"

constexpr int PARTS_BLOCK = 256;  // threads, and the most parts of a whole tensor

// --- rows in chunks --------------------------------------------------------------------------------
//
// Chunks of CHUNK elements, of which most rows have one, are the tasks of teams. Where the bound of
// rows asks for more, a second launch combines the parts of each row.

constexpr int CHUNK = Block::TILE;  // reduce.py knows it too

struct ChunkArgs {
    Tensor y;
    Tensor x;
    Span parts;  // a number for each chunk
    int n_chunks;
    int is_mean;
    int rows_per_block;
};

struct Chunk {
    i64_t row;
    int start;
    int n;
};

__device__ inline Chunk chunk_of(const ChunkArgs& args, i64_t task, const Run& run) {
    const i64_t row = task / args.n_chunks;
    const int start = (int)(task - row * args.n_chunks) * CHUNK;
    return {row, start, min(CHUNK, max(0, args.x.ne[0].at(run) - start))};
}

template <class Op>
__device__ inline void run_chunk(const ChunkArgs& args, const Run& run) {
    const i64_t task = row_of_team(args.rows_per_block);
    if (task >= args.x.n_rows(run) * args.n_chunks) return;
    run_row<Op>(args, run, task, chunk_of(args, task, run).n);
}

// The row whose parts this warp combines; -1 for none.
__device__ inline i64_t row_of_parts(const ChunkArgs& args, const Run& run) {
    const i64_t row = (i64_t)blockIdx.x * (PARTS_BLOCK / 32) + threadIdx.x / 32;
    return row < args.x.n_rows(run) ? row : -1;
}

// --- sums of rows ----------------------------------------------------------------------------------

__device__ inline void set_sum(const ChunkArgs& args, const Run& run, i64_t row, float sum) {
    const float y = args.is_mean ? sum / args.x.ne[0].at(run) : sum;
    *row_to(args.y, row_of(args.x, row, run)) = y;
}

struct SumChunk {
    template <class Team>
    __device__ static void row(const ChunkArgs& args, const Run& run, i64_t task, int n) {
        const Chunk chunk = chunk_of(args, task, run);
        const float* x = row_at(args.x, row_of(args.x, chunk.row, run)) + chunk.start;
        float v[QUADS][4];
        load_tile<Team>(v, x, 0, n, 0.0f);
        float sum = 0.0f;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum += v[q][j];
        }
        sum = Team::sum(sum);
        if (Team::rank() != 0) return;
        if (args.n_chunks == 1) {
            set_sum(args, run, chunk.row, sum);
        } else {
            ((float*)args.parts.data)[task] = sum;
        }
    }
};

// y[0] = the sum of a row, or its mean
KERNEL(sum_rows, ChunkArgs, BLOCK) { run_chunk<SumChunk>(args, run); }

KERNEL(sum_rows_of_parts, ChunkArgs, PARTS_BLOCK) {
    const i64_t row = row_of_parts(args, run);
    if (row < 0) return;
    const float* parts = (const float*)args.parts.data + row * args.n_chunks;
    const int n_chunks = (args.x.ne[0].at(run) + CHUNK - 1) / CHUNK;
    float sum = 0.0f;
    for (int i = threadIdx.x % 32; i < n_chunks; i += 32) sum += parts[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) set_sum(args, run, row, sum);
}

// --- the largest element of each row -----------------------------------------------------------------

// Of equal elements the one with the lowest index is largest.
__device__ inline u64_t argmax_key(float v, int i) { return with_index(ascending_key(v), ~i); }
__device__ inline int argmax_index(u64_t key) { return (int)~(u32_t)key; }

__device__ inline void set_index(const ChunkArgs& args, i64_t row, u64_t key) {
    *(int*)(args.y.data + row * args.y.nb[0]) = argmax_index(key);
}

__device__ inline u64_t warp_max_key(u64_t key) {
    for (int lane = 16; lane > 0; lane /= 2) {
        key = max(key, __shfl_xor_sync(ALL_LANES, key, lane));
    }
    return key;
}

__device__ inline u64_t team_max_key(Warp, u64_t key) { return warp_max_key(key); }

__device__ inline u64_t team_max_key(Block, u64_t key) {
    __shared__ u64_t of_warp[BLOCK / 32];
    key = warp_max_key(key);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = key;
    __syncthreads();
    for (int w = 0; w < BLOCK / 32; ++w) key = max(key, of_warp[w]);
    return key;
}

struct ArgmaxChunk {
    template <class Team>
    __device__ static void row(const ChunkArgs& args, const Run& run, i64_t task, int n) {
        const Chunk chunk = chunk_of(args, task, run);
        const float* x = (const float*)args.x.at(chunk.row, 0, 0);
        u64_t largest = 0;
#pragma unroll 4
        for (int i = chunk.start + Team::rank(); i < chunk.start + n; i += Team::SIZE) {
            largest = max(largest, argmax_key(x[i], i));
        }
        largest = team_max_key(Team(), largest);
        if (Team::rank() != 0) return;
        if (args.n_chunks == 1) {
            set_index(args, chunk.row, largest);
        } else {
            ((u64_t*)args.parts.data)[task] = largest;
        }
    }
};

KERNEL(argmax, ChunkArgs, BLOCK) { run_chunk<ArgmaxChunk>(args, run); }

KERNEL(argmax_of_parts, ChunkArgs, PARTS_BLOCK) {
    const i64_t row = row_of_parts(args, run);
    if (row < 0) return;
    const u64_t* parts = (const u64_t*)args.parts.data + row * args.n_chunks;
    u64_t largest = 0;
    for (int i = threadIdx.x % 32; i < args.n_chunks; i += 32) largest = max(largest, parts[i]);
    largest = warp_max_key(largest);
    if (threadIdx.x % 32 == 0) set_index(args, row, largest);
}

// --- prefix sums -----------------------------------------------------------------------------------

struct CumsumArgs {
    Tensor y;
    Tensor x;
    int rows_per_block;
};

// The sum of v over the lanes before this one. `all` becomes that of the warp.
__device__ inline double lanes_before(double v, double& all) {
    const int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(ALL_LANES, v, step);
        if (lane >= step) v += other;
    }
    all = __shfl_sync(ALL_LANES, v, 31);
    const double before = __shfl_up_sync(ALL_LANES, v, 1);
    return lane == 0 ? 0.0 : before;
}

// Replaces each thread's sums of its quads by what is before them in the tile, and returns the sum of
// the tile.
__device__ inline double sums_before(Warp, double (&sums)[QUADS]) {
    double before = 0.0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        double all;
        sums[q] = before + lanes_before(sums[q], all);
        before += all;
    }
    return before;
}

__device__ inline double sums_before(Block, double (&sums)[QUADS]) {
    __shared__ double of_warp[QUADS][BLOCK / 32];
    const int warp = threadIdx.x / 32;
    __syncthreads();  // an earlier call may still read of_warp
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        double all;
        sums[q] = lanes_before(sums[q], all);
        if (threadIdx.x % 32 == 0) of_warp[q][warp] = all;
    }
    __syncthreads();
    double before = 0.0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        for (int w = 0; w < BLOCK / 32; ++w) {
            if (w == warp) sums[q] += before;
            before += of_warp[q][w];
        }
    }
    return before;
}

struct CumulateRow {
    template <class Team>
    __device__ static void row(const CumsumArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.x, row, run);
        const float* x = row_at(args.x, at);
        double before = 0.0;  // the sum of all tiles before
        for (int tile = 0; tile < n; tile += Team::TILE) {
            float v[QUADS][4];
            load_tile<Team>(v, x, tile, n, 0.0f);
            double sums[QUADS];
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                sums[q] = v[q][0];
#pragma unroll
                for (int j = 1; j < 4; ++j) sums[q] += v[q][j];
            }
            const double of_tile = sums_before(Team(), sums);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                double sum = before + sums[q];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum += v[q][j];
                    v[q][j] = (float)sum;
                }
            }
            before += of_tile;
            store_tile<Team>(v, row_to(args.y, at), tile, n);
        }
    }
};

// y[i] = x[0] + ... + x[i], added up in f64
KERNEL(cumsum, CumsumArgs, BLOCK) { run_rows<CumulateRow>(args, args.x, run); }

// --- whole tensors -----------------------------------------------------------------------------------

// The sum over a block of PARTS_BLOCK threads, in thread 0.
template <class T>
__device__ inline T block_total(T v) {
    __shared__ T of_warp[PARTS_BLOCK / 32];
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(ALL_LANES, v, lane);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    T total = 0;
    for (int w = 0; w < PARTS_BLOCK / 32; ++w) total += of_warp[w];
    return total;
}

// Calls f(row, start, n) for every tile of this warp: n elements from `start` on of a row.
template <class F>
__device__ inline void for_tiles(i64_t n_rows, i64_t n, F f) {
    const i64_t per_row = (n + WARP_ROW - 1) / WARP_ROW;
    const i64_t n_warps = (i64_t)gridDim.x * (PARTS_BLOCK / 32);
    i64_t task = (i64_t)blockIdx.x * (PARTS_BLOCK / 32) + threadIdx.x / 32;
    for (; task < n_rows * per_row; task += n_warps) {
        const i64_t row = task / per_row;
        const i64_t start = (task - row * per_row) * WARP_ROW;
        f(row, start, (int)min((i64_t)WARP_ROW, n - start));
    }
}

struct SumArgs {
    Tensor y;
    Tensor x;
    Span parts;  // f64, one for each block
    int n_parts;
    int is_one_row;  // x is contiguous in every run
};

// A thread adds up its floats of a tile in f32, and tiles in f64.
KERNEL(sum_parts, SumArgs, PARTS_BLOCK) {
    const Tensor& x = args.x;
    const i64_t n_rows = args.is_one_row ? 1 : x.n_rows(run);
    const i64_t n = args.is_one_row ? x.n_elements(run) : x.ne[0].at(run);
    double total = 0.0;
    for_tiles(n_rows, n, [&](i64_t row, i64_t start, int n_here) {
        const float* from = args.is_one_row ? (const float*)x.data : row_at(x, row_of(x, row, run));
        float v[QUADS][4];
        load_tile<Warp>(v, from + start, 0, n_here, 0.0f);
        float sum = 0.0f;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum += v[q][j];
        }
        total += sum;
    });
    total = block_total(total);
    if (threadIdx.x == 0) ((double*)args.parts.data)[blockIdx.x] = total;
}

KERNEL(sum_of_parts, SumArgs, PARTS_BLOCK) {
    const double* parts = (const double*)args.parts.data;
    const int i = threadIdx.x;
    const double total = block_total(i < args.n_parts ? parts[i] : 0.0);
    if (i == 0) *(float*)args.y.data = (float)total;
}

struct CountArgs {
    Tensor y;
    Tensor a;
    Tensor b;
    Span parts;  // i64, one for each block
    int n_parts;
};

KERNEL(count_equal_parts, CountArgs, PARTS_BLOCK) {
    i64_t count = 0;
    for_tiles(args.a.n_rows(run), args.a.ne[0].at(run), [&](i64_t row, i64_t start, int n) {
        const Row at = row_of(args.a, row, run);
        const int* a = (const int*)args.a.at(at.i1, at.i2, at.i3) + start;
        const int* b = (const int*)args.b.at(at.i1, at.i2, at.i3) + start;
        for (int i = threadIdx.x % 32; i < n; i += 32) count += a[i] == b[i];
    });
    count = block_total(count);
    if (threadIdx.x == 0) ((i64_t*)args.parts.data)[blockIdx.x] = count;
}

KERNEL(count_of_parts, CountArgs, PARTS_BLOCK) {
    const i64_t* parts = (const i64_t*)args.parts.data;
    const int i = threadIdx.x;
    const i64_t count = block_total(i < args.n_parts ? parts[i] : 0);
    if (i == 0) *(i64_t*)args.y.data = count;
}
