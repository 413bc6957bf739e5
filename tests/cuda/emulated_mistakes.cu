// Kernels with a mistake, and without it where RIGHT is defined.
#include "async.cuh"

#ifdef RIGHT
constexpr bool WRONG = false;
#else
constexpr bool WRONG = true;
#endif
constexpr int THREADS = 64;

struct Args {
    Tensor y;
    Tensor x;
    int n;
};

KERNEL(no_barrier, Args, THREADS) {
    __shared__ float tile[THREADS];
    const int i = threadIdx.x;
    tile[i] = ((const float*)args.x.data)[i];
    if (!WRONG) __syncthreads();
    ((float*)args.y.data)[i] = tile[i];
    if (i < THREADS - 1) ((float*)args.y.data)[i] += tile[i + 1];
}

// Values go from lane to lane through shared memory: a shuffle is no barrier.
KERNEL(no_warp_barrier, Args, THREADS) {
    __shared__ float tile[THREADS];
    const int i = threadIdx.x;
    tile[i] = ((const float*)args.x.data)[i];
    float v = __shfl_xor_sync(ALL_LANES, tile[i], 1);
    if (!WRONG) __syncwarp();
    v += tile[i ^ 1];
    ((float*)args.y.data)[i] = v;
}

// Another round writes what threads may still read.
KERNEL(no_barrier_between_rounds, Args, THREADS) {
    __shared__ float tile[THREADS];
    const int i = threadIdx.x;
    float v = ((const float*)args.x.data)[i];
    for (int round = 0; round < 2; ++round) {
        tile[i] = v;
        __syncthreads();
        v += tile[(i + 1) % THREADS];
        if (!WRONG) __syncthreads();
    }
    ((float*)args.y.data)[i] = v;
}

KERNEL(reads_over, Args, THREADS) {
    const int i = threadIdx.x;
    ((float*)args.y.data)[i] = ((const float*)args.x.data)[i + (WRONG ? 1 : 0)];
}

KERNEL(writes_over, Args, THREADS) {
    const int i = threadIdx.x;
    ((float*)args.y.data)[i + (WRONG ? 1 : 0)] = ((const float*)args.x.data)[i];
}

KERNEL(writes_over_bytes, Args, THREADS) {
    char* y = args.y.data + threadIdx.x * 4;
    memcpy(y + (WRONG ? 2 : 0), args.x.data + threadIdx.x * 4, 4);
}

KERNEL(over_shared, Args, THREADS) {
    DYNAMIC_SHARED(float, shared);
    const int i = threadIdx.x;
    shared[i + (WRONG ? 1 : 0)] = ((const float*)args.x.data)[i];
    __syncthreads();
    ((float*)args.y.data)[i] = shared[i + (WRONG ? 1 : 0)];
}

KERNEL(over_array, Args, THREADS) {
    __shared__ float first[THREADS];
    __shared__ float second[THREADS];
    const int i = threadIdx.x;
    first[i] = second[i] = ((const float*)args.x.data)[i];
    __syncthreads();
    ((float*)args.y.data)[i] = first[i] + second[i + (WRONG ? args.n : 0)];
}

KERNEL(undefined_shared, Args, THREADS) {
    __shared__ float tile[THREADS];
    const int i = threadIdx.x;
    if (!WRONG || i != 7) tile[i] = ((const float*)args.x.data)[i];
    __syncthreads();
    ((float*)args.y.data)[i] = tile[i];
}

KERNEL(undefined_global, Args, THREADS) {
    float* y = (float*)args.y.data;
    const int i = threadIdx.x;
    if (!WRONG) y[i] = 0.0f;
    y[i] += ((const float*)args.x.data)[i];
}

KERNEL(blocks_write_one_word, Args, THREADS) {
    float* y = (float*)args.y.data;
    if (threadIdx.x == 0) y[WRONG ? 0 : blockIdx.x] = 1.0f;
}

KERNEL(blocks_read_what_others_write, Args, THREADS) {
    float* y = (float*)args.y.data;
    const int i = blockIdx.x * THREADS + threadIdx.x;
    y[i] = 1.0f;
    if (WRONG && i == 100) y[i] += y[3];
}

// The last block reads what all have written; a wrong one does not wait until it is the last.
KERNEL(reads_before_others_arrive, Args, THREADS) {
    int* y = (int*)args.y.data;
    if (threadIdx.x == 1) y[1 + blockIdx.x] = 1;
    if (WRONG || is_last_block(&y[0], 2)) {
        if (threadIdx.x == 0) y[4 + blockIdx.x] = y[2 - blockIdx.x];
    }
}

KERNEL(plain_beside_atomic, Args, THREADS) {
    int* y = (int*)args.y.data;
    atomicAdd(&y[0], 1);
    if (WRONG) y[1] = y[0];
}

KERNEL(barrier_in_branch, Args, THREADS) {
    if (!WRONG || threadIdx.x < 40) __syncthreads();
    ((float*)args.y.data)[threadIdx.x] = 1.0f;
}

KERNEL(barrier_and_shuffle, Args, THREADS) {
    float v = 1.0f;
    if (WRONG && threadIdx.x % 2) {
        __syncthreads();
    } else {
        v = __shfl_xor_sync(ALL_LANES, v, 1);
    }
    ((float*)args.y.data)[threadIdx.x] = v;
}

KERNEL(shuffle_in_branch, Args, THREADS) {
    float v = 1.0f;
    if (!WRONG || threadIdx.x < 40) v = __shfl_xor_sync(ALL_LANES, v, 1);
    ((float*)args.y.data)[threadIdx.x] = v;
}

KERNEL(no_wait, Args, THREADS) {
    __shared__ __align__(16) float tile[THREADS * 4];
    const int i = threadIdx.x * 4;
    if (i < THREADS) {
        copy_async_16(&tile[i], (const float*)args.x.data + i);
        copy_async_commit();
        if (!WRONG) copy_async_wait<0>();
    }
    __syncthreads();
    ((float*)args.y.data)[threadIdx.x] = tile[threadIdx.x];
}

KERNEL(waits_for_another_group, Args, THREADS) {
    __shared__ __align__(16) float tile[2][THREADS * 4];
    const int i = threadIdx.x;
    copy_async_4(&tile[0][i], (const float*)args.x.data + i);
    copy_async_commit();
    copy_async_4(&tile[1][i], (const float*)args.x.data + i);
    copy_async_commit();
    if (WRONG) copy_async_wait<1>();
    else copy_async_wait<0>();
    ((float*)args.y.data)[i] = tile[1][i];
}

KERNEL(misaligned, Args, THREADS) {
    const int i = threadIdx.x * (WRONG ? 2 : 4);
    if (i + 4 > THREADS) return;
    const float4 v = *(const float4*)((const float*)args.x.data + i);
    ((float*)args.y.data)[threadIdx.x] = v.x + v.w;
}

KERNEL(writes_what_it_may_read, Args, THREADS) {
    float* x = (float*)(WRONG ? args.x.data : args.y.data);
    x[threadIdx.x] = 1.0f;
}

KERNEL(divides_by_zero, Args, THREADS) {
    ((int*)args.y.data)[threadIdx.x] = 100 / (int)(threadIdx.x + (WRONG ? 0 : 1));
}
