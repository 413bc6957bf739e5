// Reductions of rows and of whole tensors, and prefix sums.
//
// What is one row, or a part of one, is added up by a team; see reduce_rows.cuh. Whole tensors are
// reduced in two launches: blocks to one number each, and those to the result.
#include "reduce_rows.cuh"
#include "sort_keys.cuh"

constexpr int PARTS_BLOCK = 256;  // threads, and the most parts of a whole tensor

// --- rows ------------------------------------------------------------------------------------------

struct RowArgs {
    Tensor y;
    Tensor x;
    int is_mean;
    int rows_per_block;
};

struct SumRow {
    template <class Team>
    __device__ static void row(const RowArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.x, row, run);
        const float* x = row_at(args.x, at);
        float sum = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            float v[QUADS][4];
            load_tile<Team>(v, x, tile, n, 0.0f);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum += v[q][j];
            }
        }
        sum = Team::sum(sum);
        if (Team::rank() == 0) *row_to(args.y, at) = args.is_mean ? sum / n : sum;
    }
};

// y[0] = the sum of a row, or its mean
KERNEL(sum_rows, RowArgs, BLOCK) { run_rows<SumRow>(args, args.x, run); }

// Sums over the threads of a team: those before this one, and all.
struct Prefix {
    double before;
    double all;
};

__device__ inline Prefix team_prefix(Warp, double v) {
    const int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(ALL_LANES, v, step);
        if (lane >= step) v += other;
    }
    const double before = __shfl_up_sync(ALL_LANES, v, 1);
    return {lane == 0 ? 0.0 : before, __shfl_sync(ALL_LANES, v, 31)};
}

__device__ inline Prefix team_prefix(Block, double v) {
    __shared__ double of_warp[BLOCK / 32];
    const int warp = threadIdx.x / 32;
    const Prefix in_warp = team_prefix(Warp(), v);
    __syncthreads();  // an earlier call may still read of_warp
    if (threadIdx.x % 32 == 0) of_warp[warp] = in_warp.all;
    __syncthreads();
    Prefix found = {0.0, 0.0};
    for (int w = 0; w < BLOCK / 32; ++w) {
        if (w == warp) found.before = found.all + in_warp.before;
        found.all += of_warp[w];
    }
    return found;
}

struct CumulateRow {
    template <class Team>
    __device__ static void row(const RowArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.x, row, run);
        const float* x = row_at(args.x, at);
        float* y = row_to(args.y, at);
        double before = 0.0;  // the sum of all quads before those of this step
        for (int tile = 0; tile < n; tile += Team::TILE) {
            float v[QUADS][4];
            load_tile<Team>(v, x, tile, n, 0.0f);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                double sum[4];
                sum[0] = v[q][0];
#pragma unroll
                for (int j = 1; j < 4; ++j) sum[j] = sum[j - 1] + v[q][j];
                const Prefix prefix = team_prefix(Team(), sum[3]);
                const double start = before + prefix.before;
#pragma unroll
                for (int j = 0; j < 4; ++j) v[q][j] = (float)(start + sum[j]);
                before += prefix.all;
            }
            store_tile<Team>(v, y, tile, n);
        }
    }
};

// y[i] = x[0] + ... + x[i], added up in f64
KERNEL(cumsum, RowArgs, BLOCK) { run_rows<CumulateRow>(args, args.x, run); }

// --- the largest element of each row -----------------------------------------------------------------

struct ArgmaxArgs {
    Tensor y;
    Tensor x;
    Span parts;  // u64 [rows, chunks] where rows have several chunks
    int chunk;   // elements
    int n_chunks;
    int rows_per_block;
};

// Of equal elements the one with the lowest index is largest.
__device__ inline u64_t argmax_key(float v, int i) { return with_index(ascending_key(v), ~i); }
__device__ inline int argmax_index(u64_t key) { return (int)~(u32_t)key; }

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

__device__ inline void set_index(const Tensor& y, i64_t row, u64_t key) {
    *(int*)(y.data + row * y.nb[0]) = argmax_index(key);
}

struct ArgmaxRow {
    // `task` is a chunk of a row: n elements.
    template <class Team>
    __device__ static void row(const ArgmaxArgs& args, const Run& run, i64_t task, int n) {
        const i64_t row = task / args.n_chunks;
        const int start = (int)(task - row * args.n_chunks) * args.chunk;
        const float* x = (const float*)args.x.at(row, 0, 0);
        u64_t largest = 0;
#pragma unroll 4
        for (int i = start + Team::rank(); i < start + n; i += Team::SIZE) {
            largest = max(largest, argmax_key(x[i], i));
        }
        largest = team_max_key(Team(), largest);
        if (Team::rank() != 0) return;
        if (args.n_chunks == 1) {
            set_index(args.y, row, largest);
        } else {
            ((u64_t*)args.parts.data)[task] = largest;
        }
    }
};

KERNEL(argmax, ArgmaxArgs, BLOCK) {
    const i64_t task = row_of_team(args.rows_per_block);
    if (task >= (i64_t)args.x.ne[1].at(run) * args.n_chunks) return;
    const int start = (int)(task % args.n_chunks) * args.chunk;
    const int n = min(args.chunk, max(0, args.x.ne[0].at(run) - start));
    run_row<ArgmaxRow>(args, run, task, n);
}

// A warp for each row.
KERNEL(argmax_of_parts, ArgmaxArgs, PARTS_BLOCK) {
    const i64_t row = (i64_t)blockIdx.x * (PARTS_BLOCK / 32) + threadIdx.x / 32;
    if (row >= args.x.ne[1].at(run)) return;
    const u64_t* parts = (const u64_t*)args.parts.data + row * args.n_chunks;
    u64_t largest = 0;
    for (int i = threadIdx.x % 32; i < args.n_chunks; i += 32) largest = max(largest, parts[i]);
    largest = warp_max_key(largest);
    if (threadIdx.x % 32 == 0) set_index(args.y, row, largest);
}

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
