// Copies from global to shared memory that the threads do not wait for (cp.async, sm_80 and newer).
//
//     copy_async_16(&tile[next][i], &x[i]);   // each thread starts its own copies
//     copy_async_commit();                    // those since the last commit are a group
//     copy_async_wait<1>();                   // all groups of this thread but the last one are done
//     __syncthreads();                        // and those of the other threads
//
// The target may be a SharedAddress too: found once, for many copies.
//
// The emulation copies at the wait that covers the group. Until then the target is undefined.
#pragma once
#include "common.cuh"

#ifndef GGMLPY_EMULATED
// The address that instructions of shared memory take.
__device__ inline u32_t shared_address(const void* shared) {
    u32_t address;
    asm("{ .reg .u64 full; cvta.to.shared.u64 full, %1; cvt.u32.u64 %0, full; }"
        : "=r"(address)
        : "l"(shared));
    return address;
}
#endif

#ifdef GGMLPY_EMULATED
typedef char* SharedAddress;
inline SharedAddress to_shared(void* shared) { return (char*)shared; }
#else
typedef u32_t SharedAddress;
__device__ inline SharedAddress to_shared(const void* shared) { return shared_address(shared); }

__device__ inline void copy_async_16(SharedAddress shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ inline void copy_async_4(SharedAddress shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
__device__ inline void copy_async_16_part(SharedAddress shared, const void* global, int n_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(n_bytes)
                 : "memory");
}
#endif

// 16 bytes, both addresses multiples of 16. Does not go through L1.
__device__ inline void copy_async_16(void* shared, const void* global) {
#ifdef GGMLPY_EMULATED
    emulated_async_copy(shared, global, 16, 16);
#else
    copy_async_16(to_shared(shared), global);
#endif
}

// 4 bytes, both addresses multiples of 4.
__device__ inline void copy_async_4(void* shared, const void* global) {
#ifdef GGMLPY_EMULATED
    emulated_async_copy(shared, global, 4, 4);
#else
    copy_async_4(to_shared(shared), global);
#endif
}

// 16 bytes, or 16 zeros where not valid: `global` is then not read, and may be any address.
__device__ inline void copy_async_16_zfill(void* shared, const void* global, bool valid) {
#ifdef GGMLPY_EMULATED
    emulated_async_copy(shared, global, 16, valid ? 16 : 0);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
#endif
}

// The first `n_bytes` of 16 bytes, and zeros behind them.
__device__ inline void copy_async_16_part(void* shared, const void* global, int n_bytes) {
#ifdef GGMLPY_EMULATED
    emulated_async_copy(shared, global, 16, n_bytes);
#else
    copy_async_16_part(to_shared(shared), global, n_bytes);
#endif
}

__device__ inline void copy_async_commit() {
#ifdef GGMLPY_EMULATED
    emulated_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most N of this thread's groups, the last ones, are still copied.
template <int N>
__device__ inline void copy_async_wait() {
#ifdef GGMLPY_EMULATED
    emulated_async_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
