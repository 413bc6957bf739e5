// Orders within rows: all indices of a row (argsort), or those of its k largest elements (top_k).
//
// An element becomes one u64, its key above its index (sort_keys.cuh). No two are equal, so that no
// step needs to be stable, and the result does not depend on how the work is shared.
//
//   up to 2048 elements     sort_rows: a block sorts the row in shared memory
//   longer, k up to 1024    top_chunks: the k best of each chunk; top_of_parts: those of all chunks
//   longer, any k           sort_chunks: chunks of 2048; merge_runs, again and again: two runs to one
#include "sort_keys.cuh"

constexpr int SORTED = 2048;      // keys that a block sorts
constexpr int SORT_BLOCK = 512;   // threads
constexpr int MERGE_BLOCK = 256;  // threads, each of which merges a few keys of a tile of SORTED
constexpr u64_t LAST = ~0ull;     // stands behind all keys

// --- in a block --------------------------------------------------------------------------------------

// Sorts keys in shared memory, ascending: `size` is a power of two from 64 on. Bitonic: blocks of
// `run` keys are sorted each from two sorted halves, of which the second is read backwards.
__device__ inline void sort_shared(u64_t* keys, int size) {
    bool others_wrote = true;  // keys that this warp reads next
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            const bool in_warp = step <= 32;  // its threads exchange 64 neighbouring keys among them
            if (others_wrote || !in_warp) {
                __syncthreads();
            } else {
                __syncwarp();
            }
            others_wrote = !in_warp;
            for (int t = threadIdx.x; t < size / 2; t += blockDim.x) {
                const int below = t & (step - 1);
                const int i = 2 * (t - below) + below;
                const int j = step == run / 2 ? i + run - 1 - 2 * below : i + step;
                const u64_t a = keys[i], b = keys[j];
                if (a > b) {
                    keys[i] = b;
                    keys[j] = a;
                }
            }
        }
    }
    __syncthreads();
}

// Keys of a row of floats from `start` on.
struct Floats {
    const float* x;
    int start;
    bool descending;

    __device__ u64_t operator()(int i) const {
        const float v = x[start + i];
        return with_index(descending ? descending_key(v) : ascending_key(v), start + i);
    }
};

struct Keys {
    const u64_t* keys;

    __device__ u64_t operator()(int i) const { return keys[i]; }
};

__device__ inline int index_of(u64_t key) { return (int)(u32_t)key; }

// --- selection ---------------------------------------------------------------------------------------

constexpr int DIGIT_BITS = 11;  // sign, exponent and two bits of a float: it spreads over some bins
constexpr int BINS = 1 << DIGIT_BITS;

struct Bin {
    int digit;
    int before;  // keys in the bins below
};

// The bin that key number `wanted`, from 1 on, is in. All threads call it, and get the same.
__device__ inline Bin find_bin(const int* counts, int wanted) {
    __shared__ int of_warp[SORT_BLOCK / 32];
    __shared__ Bin found;
    constexpr int EACH = BINS / SORT_BLOCK;
    const int first = threadIdx.x * EACH, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int own = 0;
    for (int b = first; b < first + EACH; ++b) own += counts[b];
    int upto = own;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL_LANES, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) of_warp[warp] = upto;
    __syncthreads();
    int before = upto - own;
    for (int w = 0; w < warp; ++w) before += of_warp[w];
    if (before < wanted && wanted <= before + own) {  // of one thread
        int digit = first;
        while (before + counts[digit] < wanted) before += counts[digit++];
        found = {digit, before};
    }
    __syncthreads();
    return found;
}

// The k-th smallest of n keys, or a larger one that is as good as a limit: k keys are not above it.
// Digit by digit from the top; it ends as soon as a whole bin is taken, which is after two or three
// digits unless elements are equal.
template <class Source>
__device__ inline u64_t kth_key(const Source& source, int n, int k) {
    __shared__ int counts[BINS];
    u64_t prefix = 0;  // of the keys that are left
    int bits = 64;     // below the prefix
    while (bits > 0) {
        const int shift = max(0, bits - DIGIT_BITS);
        for (int b = threadIdx.x; b < BINS; b += SORT_BLOCK) counts[b] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += SORT_BLOCK) {
            const u64_t key = source(i);
            if (bits == 64 || key >> bits == prefix) {
                atomicAdd(&counts[(key >> shift) & ((1u << (bits - shift)) - 1)], 1);
            }
        }
        __syncthreads();
        const Bin bin = find_bin(counts, k);
        k -= bin.before;
        const bool whole = counts[bin.digit] == k;
        prefix = prefix << (bits - shift) | (u64_t)bin.digit;
        bits = shift;
        __syncthreads();  // counts and the found bin are read
        if (whole) break;
    }
    return ((prefix + 1) << bits) - 1;
}

// Writes the k smallest of n keys to `best`, in no order, and LAST behind them if n is below k.
template <class Source>
__device__ inline void select(const Source& source, int n, int k, u64_t* best) {
    __shared__ int n_found;
    if (threadIdx.x == 0) n_found = 0;
    __syncthreads();
    const u64_t limit = n > k ? kth_key(source, n, k) : LAST;
    for (int i = threadIdx.x; i < n; i += SORT_BLOCK) {
        const u64_t key = source(i);
        if (key <= limit) best[atomicAdd(&n_found, 1)] = key;
    }
    for (int i = n + threadIdx.x; i < k; i += SORT_BLOCK) best[i] = LAST;
}

// --- kernels -----------------------------------------------------------------------------------------

struct Args {
    Tensor y;
    Tensor x;
    Span parts;   // u64 [rows, n_chunks, k]: the best of chunks
    Span source;  // u64 [rows, n]: runs, and where they are merged to
    Span target;
    int k;
    int descending;
    int size;  // a power of two: keys to sort
    int n_chunks;
    int chunk;  // elements
    int n_tiles;
    int width;      // of the runs that are merged
    int is_last;    // the merge that gives the result
    int first_row;  // of a launch for some of the rows
};

__device__ inline const float* row_at(const Tensor& x, i64_t row, const Run& run) {
    const Row at = row_of(x, row, run);
    return (const float*)x.at(at.i1, at.i2, at.i3);
}

__device__ inline int* row_to(const Tensor& y, i64_t row, const Run& run) {
    const Row at = row_of(y, row, run);
    return (int*)y.at(at.i1, at.i2, at.i3);
}

// Rows of at most `size` elements, a block for each.
KERNEL(sort_rows, Args, SORT_BLOCK) {
    DYNAMIC_SHARED(u64_t, keys);
    const i64_t row = blockIdx.x;
    if (row >= args.x.n_rows(run)) return;
    const int n = args.x.ne[0].at(run);
    const Floats source = {row_at(args.x, row, run), 0, args.descending != 0};
    for (int i = threadIdx.x; i < args.size; i += blockDim.x) keys[i] = i < n ? source(i) : LAST;
    sort_shared(keys, args.size);
    int* y = row_to(args.y, row, run);
    for (int i = threadIdx.x; i < min(args.k, n); i += blockDim.x) y[i] = index_of(keys[i]);
}

// The k best of each chunk of a row to `parts`, a block for each chunk.
KERNEL(top_chunks, Args, SORT_BLOCK) {
    const i64_t row = blockIdx.x / args.n_chunks;
    if (row >= args.x.n_rows(run)) return;
    const int start = (int)(blockIdx.x % args.n_chunks) * args.chunk;
    const int n = min(args.chunk, max(0, args.x.ne[0].at(run) - start));
    const Floats source = {row_at(args.x, row, run), start, true};
    select(source, n, args.k, (u64_t*)args.parts.data + (i64_t)blockIdx.x * args.k);
}

// The k best of all chunks of a row, sorted, a block for each row.
KERNEL(top_of_parts, Args, SORT_BLOCK) {
    DYNAMIC_SHARED(u64_t, keys);
    const i64_t row = blockIdx.x;
    if (row >= args.x.n_rows(run)) return;
    const int n = args.n_chunks * args.k;
    const Keys source = {(const u64_t*)args.parts.data + row * n};
    select(source, n, args.k, keys);
    for (int i = args.k + threadIdx.x; i < args.size; i += SORT_BLOCK) keys[i] = LAST;
    sort_shared(keys, args.size);
    int* y = row_to(args.y, row, run);
    const int k = min(args.k, args.x.ne[0].at(run));
    for (int i = threadIdx.x; i < k; i += SORT_BLOCK) y[i] = index_of(keys[i]);
}

// Sorted runs of SORTED keys to `source`, a block for each.
KERNEL(sort_chunks, Args, SORT_BLOCK) {
    __shared__ u64_t keys[SORTED];
    const i64_t row = blockIdx.x / args.n_chunks;
    if (args.first_row + row >= args.x.n_rows(run)) return;
    const int start = (int)(blockIdx.x % args.n_chunks) * SORTED;
    const int n = min(SORTED, args.x.ne[0].at(run) - start);
    if (n <= 0) return;
    const Floats source = {row_at(args.x, args.first_row + row, run), start, args.descending != 0};
    for (int i = threadIdx.x; i < SORTED; i += SORT_BLOCK) keys[i] = i < n ? source(i) : LAST;
    sort_shared(keys, SORTED);
    u64_t* to = (u64_t*)args.source.data + row * args.x.ne[0].bound + start;
    for (int i = threadIdx.x; i < n; i += SORT_BLOCK) to[i] = keys[i];
}

// Of the first `d` keys of two merged runs, how many come from a.
__device__ inline int split(const u64_t* a, int n_a, const u64_t* b, int n_b, int d) {
    int low = max(0, d - n_b), high = min(d, n_a);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (a[middle] < b[d - 1 - middle]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Pairs of runs of `width` keys become runs of twice as many: a block for each SORTED keys of them.
// It finds where its tile begins and ends in both runs, and its threads do the same within the tile.
KERNEL(merge_runs, Args, MERGE_BLOCK) {
    constexpr int EACH = SORTED / MERGE_BLOCK;
    __shared__ u64_t keys[SORTED];
    __shared__ int splits[2];
    const i64_t row = blockIdx.x / args.n_tiles;
    if (args.first_row + row >= args.x.n_rows(run)) return;
    const int n = args.x.ne[0].at(run);
    const int begin = (int)(blockIdx.x % args.n_tiles) * SORTED;
    const int end = min(begin + SORTED, n);
    if (begin >= n) return;

    // The pair: a and b.
    const u64_t* source = (const u64_t*)args.source.data + row * args.x.ne[0].bound;
    const int start = begin - begin % (2 * args.width);
    const int n_a = min(args.width, n - start);
    const int n_b = min(args.width, n - start - n_a);
    const u64_t* a = source + start;
    const u64_t* b = a + n_a;
    if (threadIdx.x < 2) {
        splits[threadIdx.x] = split(a, n_a, b, n_b, (threadIdx.x == 0 ? begin : end) - start);
    }
    __syncthreads();

    // The tile: its part of a in front of its part of b.
    const int from_a = splits[0], from_b = begin - start - from_a;
    const int in_a = splits[1] - from_a, n_here = end - begin;
    for (int i = threadIdx.x; i < n_here; i += MERGE_BLOCK) {
        keys[i] = i < in_a ? a[from_a + i] : b[from_b + i - in_a];
    }
    __syncthreads();
    const int d = min((int)threadIdx.x * EACH, n_here);
    int i = split(keys, in_a, keys + in_a, n_here - in_a, d);
    int j = in_a + d - i;
    u64_t merged[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        if (d + e < n_here) {
            const bool take_a = j >= n_here || (i < in_a && keys[i] < keys[j]);
            merged[e] = keys[take_a ? i++ : j++];
        }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        if (d + e < n_here) keys[d + e] = merged[e];
    }
    __syncthreads();

    if (args.is_last) {
        int* y = row_to(args.y, args.first_row + row, run);
        for (int o = threadIdx.x; o < min(n_here, args.k - begin); o += MERGE_BLOCK) {
            y[begin + o] = index_of(keys[o]);
        }
    } else {
        u64_t* to = (u64_t*)args.target.data + row * args.x.ne[0].bound + begin;
        for (int o = threadIdx.x; o < n_here; o += MERGE_BLOCK) to[o] = keys[o];
    }
}
