// What every kernel has: its two parameters, places of elements, sums over warps and blocks.
//
// A kernel is declared as KERNEL(name, Args, threads): `args` is its own struct, `run` is the same for
// all kernels. KERNEL_BLOCKS says too how many blocks are to fit a multiprocessor by their registers.
//
// A launch may begin before the one before it is complete (overlap.py): a kernel waits for that before
// it starts. One that is declared by KERNEL_AHEAD calls after_launches_before() itself, in all threads,
// and until then accesses only its parameters, counts and weights, which no launch writes.
// The emulation (`emulated/`) defines them, DYNAMIC_SHARED and CUDA's own words in its header. No header
// of CUDA is included, so that NVRTC is all that a machine needs.
#pragma once

#ifdef GGMLPY_EMULATED
#include "cuda_on_cpu.hpp"
#else

#define KERNEL(name, Args, threads) \
    KERNEL_AFTER(name, Args, __launch_bounds__(threads), after_launches_before())
#define KERNEL_BLOCKS(name, Args, threads, blocks) \
    KERNEL_AFTER(name, Args, __launch_bounds__(threads, blocks), after_launches_before())
#define KERNEL_AHEAD(name, Args, threads, blocks) \
    KERNEL_AFTER(name, Args, __launch_bounds__(threads, blocks), (void)0)
#define KERNEL_AFTER(name, Args, bounds, wait) \
    static __device__ __forceinline__ void body_of_##name(const Args& args, const Run& run); \
    extern "C" __global__ void bounds \
        name(const __grid_constant__ Args args, const __grid_constant__ Run run) { \
        let_next_launch_begin(); \
        wait; \
        body_of_##name(args, run); \
    } \
    static __device__ __forceinline__ void body_of_##name(const Args& args, const Run& run)
#define DYNAMIC_SHARED(type, name) DYNAMIC_SHARED_AT(16, type, name)
#define DYNAMIC_SHARED_AT(alignment, type, name) \
    extern __shared__ __align__(alignment) unsigned char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)
#endif

typedef long long i64_t;
typedef unsigned int u32_t;
typedef unsigned char u8_t;
typedef signed char i8_t;
typedef unsigned short u16_t;

constexpr u32_t ALL_LANES = 0xffffffffu;

// The next launch may begin once all blocks have called this; it waits until this one is complete.
__device__ inline void let_next_launch_begin() {
#if !defined(GGMLPY_EMULATED) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// All launches before this one are complete: each of them has waited for those before it.
__device__ inline void after_launches_before() {
#if !defined(GGMLPY_EMULATED) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The first index out of range: the launch that found it, from 1 on, and the index.
struct Failure {
    int launch;
    int unused;
    i64_t value;
};

// A run of a plan: the values of the forms of its counts, where failures go, and this launch.
struct Run {
    const int* counts;
    Failure* failure;
    int launch;
    int unused;
};

// A number of elements: a bound, or where `form` is not -1 the value of that form in this run.
struct Count {
    int bound;
    int form;

    __device__ int at(const Run& run) const { return form < 0 ? bound : run.counts[form]; }
};

// ne counts elements and nb counts bytes, fastest dimension first. Strides are those of the bounds.
struct Tensor {
    char* data;
    Count ne[4];
    i64_t nb[4];

    __device__ char* at(i64_t i1, i64_t i2, i64_t i3) const {
        return data + i1 * nb[1] + i2 * nb[2] + i3 * nb[3];
    }
    __device__ char* at(i64_t i0, i64_t i1, i64_t i2, i64_t i3) const {
        return at(i1, i2, i3) + i0 * nb[0];
    }
    __device__ i64_t n_rows(const Run& run) const {
        return (i64_t)ne[1].at(run) * ne[2].at(run) * ne[3].at(run);
    }
    __device__ i64_t n_elements(const Run& run) const { return n_rows(run) * ne[0].at(run); }
};

// Scratch memory of a step.
struct Span {
    char* data;
    i64_t n_bytes;
};

// Where row i of the rows of a tensor is, in dimensions 1 to 3.
struct Row {
    int i1;
    int i2;
    int i3;
};

__device__ inline Row row_of(const Tensor& x, i64_t row, const Run& run) {
    const int n1 = x.ne[1].at(run);
    const int n2 = x.ne[2].at(run);
    const i64_t rest = row / n1;
    return {(int)(row - rest * n1), (int)(rest % n2), (int)(rest / n2)};
}

// Reports an index out of range; the first one of a run is kept.
__device__ inline void fail(const Run& run, i64_t value) {
    if (atomicCAS(&run.failure->launch, 0, run.launch) == 0) run.failure->value = value;
}

// Whether this block is the last of `n` that call it with one counter, which is then 0 again. It sees
// what the others have written before. All threads of a block call it.
__device__ inline bool is_last_block(int* counter, int n) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(counter, 1) == n - 1;
        if (is_last) atomicExch(counter, 0);
    }
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
#ifdef GGMLPY_EMULATED
    emulated_after_blocks();
#endif
    return true;
}

__device__ inline float minus_infinity() { return __uint_as_float(0xff800000u); }

__device__ inline float warp_sum(float v) {
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(ALL_LANES, v, lane);
    return v;
}

__device__ inline float warp_max(float v) {
    for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, lane));
    return v;
}

// The sum over a block of THREADS threads, in all of them. The order depends on THREADS only.
template <int THREADS>
__device__ float block_sum(float v) {
    __shared__ float partial[THREADS / 32];
    v = warp_sum(v);
    __syncthreads();  // another call may still read `partial`
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    v = partial[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) v += partial[warp];
    return v;
}

template <int THREADS>
__device__ float block_max(float v) {
    __shared__ float partial[THREADS / 32];
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    v = partial[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) v = fmaxf(v, partial[warp]);
    return v;
}
