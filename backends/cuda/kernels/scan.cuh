// Teams of threads that keep vectors in registers while they walk over the tokens of a sequence.
//
// A team is a power of two: a part of a warp, or a whole block of more than one. A vector has at most
// HELD elements for each of its threads. The order of sums depends on the size of the team only, and
// that on the length of the vectors.
//
// Sequences have different numbers of tokens. The teams of a block are of one sequence, so that all
// lanes of a warp walk equally far.
#pragma once
#include "elementwise.cuh"

// At most; of a block, which mostly has 64: kernels may take as many registers as there are.
constexpr int SCAN_THREADS = 256;
constexpr int HELD = 8;

// The threads that share vectors: this one has elements `lane`, `lane` + `lanes`, …
struct Team {
    int lane;
    int lanes;
    int n_mine;

    __device__ Team(int lanes, int n)
        : lane(threadIdx.x % lanes), lanes(lanes), n_mine((n - lane + lanes - 1) / lanes) {}

    __device__ void load(float (&v)[HELD], const float* from, i64_t stride) const {
#pragma unroll
        for (int e = 0; e < HELD; ++e) v[e] = e < n_mine ? from[(lane + e * lanes) * stride] : 0.0f;
    }
    __device__ void store(const float (&v)[HELD], float* to, i64_t stride) const {
#pragma unroll
        for (int e = 0; e < HELD; ++e) {
            if (e < n_mine) to[(lane + e * lanes) * stride] = v[e];
        }
    }
    // This lane's part of the sum of a * b.
    __device__ float dot(const float (&a)[HELD], const float (&b)[HELD]) const {
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < HELD; ++e) {
            if (e < n_mine) sum = fmaf(a[e], b[e], sum);
        }
        return sum;
    }
    // The sums of all threads' parts, in all of them. All threads of the block must call it.
    template <int N>
    __device__ void add_lanes(float (&sums)[N]) const {
        for (int apart = min(lanes, 32) / 2; apart > 0; apart /= 2) {
#pragma unroll
            for (int j = 0; j < N; ++j) sums[j] += __shfl_xor_sync(ALL_LANES, sums[j], apart);
        }
        if (lanes > 32) add_warps(sums);
    }
    template <int N>
    __device__ void add_warps(float (&sums)[N]) const {
        __shared__ float parts[SCAN_THREADS / 32][N];
        __syncthreads();  // another call may still read `parts`
        if (lane % 32 == 0) {
#pragma unroll
            for (int j = 0; j < N; ++j) parts[lane / 32][j] = sums[j];
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N; ++j) {
            sums[j] = parts[0][j];
            for (int warp = 1; warp < lanes / 32; ++warp) sums[j] += parts[warp][j];
        }
    }
};

// What a team does: it is one of those that a sequence has. Teams of a block past the last one do its
// work again, as all lanes of a warp take part in its sums; only one that `stores` reads and stores
// states.
struct Task {
    i64_t seq;
    i64_t number;
    bool stores;
};

// blocks: for each sequence as many as its n_teams need (scan_teams.py)
__device__ inline Task task_of(const Team& team, i64_t n_teams) {
    const int per_block = blockDim.x / team.lanes;
    const Quotient block = divided(blockIdx.x, (n_teams + per_block - 1) / per_block);
    const i64_t number = block.rest * per_block + threadIdx.x / team.lanes;
    return {block.whole, number < n_teams ? number : n_teams - 1, number < n_teams};
}

// The tokens of a sequence: `n` of them from `first` on, in a plane of n_tokens.
struct Part {
    i64_t plane;
    int first;
    int n;

    __device__ i64_t token(int t, int n_tokens) const { return plane * n_tokens + first + t; }
};

// Without spans each sequence has a plane of its own; spans [2, S] are parts of a single one. There are
// no tokens where a span, which is reported, is none of that.
__device__ inline Part part_of(const Tensor& spans, i64_t seq, int n_tokens, const Run& run) {
    if (!spans.data) return {seq, 0, n_tokens};
    const int* span = (const int*)spans.at(seq, 0, 0);
    const int first = span[0], n = span[1];
    const bool has_tokens = n >= 1;
    if (has_tokens && first >= 0 && first <= n_tokens - n) return {0, first, n};
    fail(run, has_tokens ? first : n);
    return {0, 0, 0};
}
