// Kernels of the tests of the emulation.
#include "common.cuh"

constexpr int THREADS = 256;

struct Args {
    Tensor y;
    Tensor x;
    int n;
};

// y[block] = the sum of x over a block; y[n_blocks + block] = lane 5 of the last warp
KERNEL(sums, Args, THREADS) {
    const float* x = (const float*)args.x.data + blockIdx.x * THREADS;
    float* y = (float*)args.y.data;
    const float sum = block_sum<THREADS>(x[threadIdx.x]);
    const float lane5 = __shfl_sync(ALL_LANES, x[threadIdx.x], 5);
    if (threadIdx.x == THREADS - 1) {
        y[blockIdx.x] = sum;
        y[gridDim.x + blockIdx.x] = lane5;
    }
}

// y[0] = how many elements of x are not 0, y[1] = how many threads there are
KERNEL(count, Args, THREADS) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    int* y = (int*)args.y.data;
    const u32_t votes = __ballot_sync(ALL_LANES, i < args.n && ((const float*)args.x.data)[i] != 0);
    if (threadIdx.x % 32 == 0) atomicAdd(&y[0], __popc(votes));
    atomicAdd(&y[1], 1);
}

// y[i] = x[n - 1 - i] by dynamic shared memory, in one block of n threads
KERNEL(reversed, Args, THREADS) {
    DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = ((const float*)args.x.data)[threadIdx.x];
    __syncthreads();
    ((float*)args.y.data)[threadIdx.x] = shared[args.n - 1 - threadIdx.x];
}

// Every thread reports how many elements y has.
KERNEL(fails, Args, THREADS) { fail(run, args.y.ne[0].at(run)); }

// Threads and blocks write bytes side by side: no race, though they share words.
KERNEL(bytes, Args, THREADS) {
    for (int i = 0; i < 2; ++i) {
        const int at = (threadIdx.x * 2 + i) * gridDim.x + blockIdx.x;
        args.y.data[at] = (char)blockIdx.x;
        args.y.data[at] += args.x.data[at % 4];
    }
}
