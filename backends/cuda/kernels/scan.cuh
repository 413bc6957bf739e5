// Teams of threads that keep vectors in registers while they walk over tokens.
//
// A team is a power of two: a part of a warp, or a whole block of more than one. A vector has at most
// HELD elements for each of its threads. The order of sums depends on the size of the team only, and
// that on the length of the vectors.
#pragma once
#include "elementwise.cuh"

constexpr int SCAN_THREADS = 256;  // at most; of a block, which may have fewer
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
