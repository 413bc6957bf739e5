// CUDA's words on the CPU: what common.cuh includes in place of CUDA when GGMLPY_EMULATED is defined.
//
// A thread is a fiber of the runtime (emulator.cpp), which runs one block at a time, so that a static
// variable can be shared memory. Arithmetic is the compiler's, without contraction: results differ
// from a GPU's where its functions (expf, __expf, rsqrtf …) are approximations.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define EMULATED_INLINE inline __attribute__((always_inline))
#define EMULATED_UNCHECKED __attribute__((noinline, no_sanitize("thread")))
#define EMULATED_EXPORTED extern "C" __attribute__((visibility("default")))

// --- kernels: an entry point that the runtime calls in every thread, and what it must be called with ---

#define KERNEL(name, Args, threads) EMULATED_KERNEL(name, Args, threads)
#define KERNEL_BLOCKS(name, Args, threads, blocks) EMULATED_KERNEL(name, Args, threads)
#define KERNEL_AHEAD(name, Args, threads, blocks) EMULATED_KERNEL(name, Args, threads)
#define EMULATED_KERNEL(name, Args, threads) \
    static void kernel_body_of_##name(const Args args, const Run run); \
    EMULATED_EXPORTED EMULATED_UNCHECKED void kernel_##name(const void* args, const void* run) { \
        kernel_body_of_##name(*(const Args*)args, *(const Run*)run); \
    } \
    EMULATED_EXPORTED const int kernel_##name##_args_bytes = sizeof(Args); \
    EMULATED_EXPORTED const int kernel_##name##_threads = threads; \
    static void kernel_body_of_##name(const Args args, const Run run)
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated_dynamic_shared()
#define DYNAMIC_SHARED_AT(alignment, type, name) DYNAMIC_SHARED(type, name)

// --- the runtime ---

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

struct EmulatedIndices {
    uint3 thread, block, block_dim, grid_dim;
};

extern "C" {
extern EmulatedIndices emulated_indices;  // of the running thread
void* emulated_dynamic_shared();
void emulated_block_barrier();
int emulated_block_barrier_sum(int value);
void emulated_warp_barrier(unsigned mask);
// The value of another lane. Every lane of the mask says which it wants.
unsigned long long emulated_shuffle(unsigned mask, unsigned long long value, int source);
// The lanes of the mask with a value other than 0.
unsigned emulated_ballot(unsigned mask, int value);
// Checks an atomic access of this thread, which then makes it: no other thread runs meanwhile.
void emulated_atomic(const void* address, int n_bytes);
// From here on, what earlier blocks of the launch accessed was before what this block does.
void emulated_after_blocks();
// Check what memcpy and memset are about to access.
void emulated_copied(void* target, const void* source, size_t n_bytes);
void emulated_filled(void* target, size_t n_bytes);
void emulated_trap();
// async.cuh: copies `n_valid` bytes and then zeros, when the thread waits for the copy's group.
void emulated_async_copy(void* shared, const void* global, int n_bytes, int n_valid);
void emulated_async_commit();
void emulated_async_wait(int n_groups);
// mma.cuh: `kind` is 0 f16, 1 bf16, 2 s8 k32, 3 s8 k16; the arrays are this lane's registers.
void emulated_mma(int kind, void* d, const unsigned* a, const unsigned* b);
void emulated_ldmatrix(int n, int transposed, unsigned* r, const void* shared_row);
}

namespace emulated {

// The checks would count a plain read, and these are no memory of the device's. They are constant in a
// thread, so reads may be merged.
EMULATED_INLINE unsigned unchecked(const unsigned& from) {
#if defined(__x86_64__)
    unsigned value;
    asm("movl %1, %0" : "=r"(value) : "m"(from));
    return value;
#elif defined(__aarch64__)
    unsigned value;
    asm("ldr %w0, %1" : "=r"(value) : "m"(from));
    return value;
#else
    return from;
#endif
}
EMULATED_INLINE uint3 unchecked(const uint3& from) {
    return {unchecked(from.x), unchecked(from.y), unchecked(from.z)};
}
EMULATED_INLINE unsigned lane() {
    const EmulatedIndices& now = emulated_indices;
    const unsigned nx = unchecked(now.block_dim.x), ny = unchecked(now.block_dim.y);
    const unsigned rest = unchecked(now.thread.z) * ny + unchecked(now.thread.y);
    return (rest * nx + unchecked(now.thread.x)) % 32;
}

template <class To, class From>
EMULATED_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "types of different sizes");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace emulated

#define threadIdx (emulated::unchecked(emulated_indices.thread))
#define blockIdx (emulated::unchecked(emulated_indices.block))
#define blockDim (emulated::unchecked(emulated_indices.block_dim))
#define gridDim (emulated::unchecked(emulated_indices.grid_dim))
constexpr int warpSize = 32;

// --- barriers and fences ---

EMULATED_INLINE void __syncthreads() { emulated_block_barrier(); }
inline int __syncthreads_count(int v) { return emulated_block_barrier_sum(v != 0); }
inline int __syncthreads_or(int v) { return emulated_block_barrier_sum(v != 0) != 0; }
inline int __syncthreads_and(int v) { return emulated_block_barrier_sum(v == 0) == 0; }
EMULATED_INLINE void __syncwarp(unsigned mask = 0xffffffffu) { emulated_warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __trap() { emulated_trap(); }

// --- exchanges in a warp ---

namespace emulated {

template <class T>
inline T from_lane(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "exchanges are of at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = emulated_shuffle(mask, bits, source);
    T result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
}

}  // namespace emulated

template <class T>
inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    const int first = (int)emulated::lane() & ~(width - 1);
    return emulated::from_lane(mask, v, first | (source & (width - 1)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const int lane = (int)emulated::lane(), source = lane - (int)delta;
    return emulated::from_lane(mask, v, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const int lane = (int)emulated::lane(), source = lane + (int)delta;
    return emulated::from_lane(mask, v, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
    const int lane = (int)emulated::lane(), source = lane ^ lanes;
    return emulated::from_lane(mask, v, source > (lane | (width - 1)) ? lane : source);
}
inline unsigned __ballot_sync(unsigned mask, int v) { return emulated_ballot(mask, v); }
inline int __any_sync(unsigned mask, int v) { return emulated_ballot(mask, v) != 0; }
inline int __all_sync(unsigned mask, int v) { return emulated_ballot(mask, v == 0) == 0; }

#define EMULATED_REDUCE(name, T, step) \
    inline T name(unsigned mask, T v) { \
        T result = v; \
        for (int i = 1; i < 32; ++i) { \
            const int lane = (int)emulated::lane(), source = (lane + i) % 32; \
            const bool takes_part = mask >> source & 1; \
            const T other = emulated::from_lane(mask, v, takes_part ? source : lane); \
            if (takes_part) result = step; \
        } \
        return result; \
    }
EMULATED_REDUCE(__reduce_add_sync, int, (int)((unsigned)result + (unsigned)other))
EMULATED_REDUCE(__reduce_add_sync, unsigned, result + other)
EMULATED_REDUCE(__reduce_max_sync, int, result > other ? result : other)
EMULATED_REDUCE(__reduce_max_sync, unsigned, result > other ? result : other)
EMULATED_REDUCE(__reduce_min_sync, int, result < other ? result : other)
EMULATED_REDUCE(__reduce_min_sync, unsigned, result < other ? result : other)
EMULATED_REDUCE(__reduce_or_sync, unsigned, result | other)
EMULATED_REDUCE(__reduce_and_sync, unsigned, result & other)

// --- atomics ---

namespace emulated {

template <class T>
EMULATED_UNCHECKED T exchanged(T* address, T value) {
    const T old = *address;
    *address = value;
    return old;
}
template <class T>
EMULATED_UNCHECKED T peeked(const T* address) {
    return *address;
}
template <class T, class F>
inline T atomic(T* address, F f) {
    emulated_atomic(address, sizeof(T));
    return exchanged(address, f(peeked(address)));
}

}  // namespace emulated

#define EMULATED_ATOMIC(name, T, next) \
    inline T name(T* address, T v) { \
        return emulated::atomic(address, [v](T old) { return (T)(next); }); \
    }
#define EMULATED_ATOMICS(T) \
    EMULATED_ATOMIC(atomicMax, T, old > v ? old : v) \
    EMULATED_ATOMIC(atomicMin, T, old < v ? old : v) \
    EMULATED_ATOMIC(atomicAnd, T, old& v) \
    EMULATED_ATOMIC(atomicOr, T, old | v) \
    EMULATED_ATOMIC(atomicXor, T, old ^ v) \
    EMULATED_ATOMIC(atomicExch, T, v) \
    inline T atomicCAS(T* address, T compare, T v) { \
        return emulated::atomic(address, [=](T old) { return old == compare ? v : old; }); \
    }
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(unsigned long long)
EMULATED_ATOMIC(atomicExch, float, v)
EMULATED_ATOMIC(atomicAdd, int, (unsigned)old + (unsigned)v)
EMULATED_ATOMIC(atomicAdd, unsigned, old + v)
EMULATED_ATOMIC(atomicAdd, unsigned long long, old + v)
EMULATED_ATOMIC(atomicAdd, float, old + v)
EMULATED_ATOMIC(atomicAdd, double, old + v)
EMULATED_ATOMIC(atomicSub, int, (unsigned)old - (unsigned)v)
EMULATED_ATOMIC(atomicSub, unsigned, old - v)

// --- memcpy and memset, whose calls the compiler does not check ---

namespace emulated {

EMULATED_INLINE constexpr bool is_load(size_t n) {
    return n == 1 || n == 2 || n == 4 || n == 8 || n == 16;
}
EMULATED_INLINE void* copied(void* target, const void* source, size_t n) {
    if (!__builtin_constant_p(n) || !is_load(n)) emulated_copied(target, source, n);
    return __builtin_memcpy(target, source, n);
}
EMULATED_INLINE void* filled(void* target, int value, size_t n) {
    emulated_filled(target, n);
    return __builtin_memset(target, value, n);
}

}  // namespace emulated

#define memcpy emulated::copied
#define memset emulated::filled

// --- vectors ---

#define EMULATED_VECTOR(T, name, align2, align4) \
    struct __align__(align2) name##2 { \
        T x, y; \
    }; \
    struct __align__(align4) name##4 { \
        T x, y, z, w; \
    }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTOR(signed char, char, 2, 4)
EMULATED_VECTOR(unsigned char, uchar, 2, 4)
EMULATED_VECTOR(short, short, 4, 8)
EMULATED_VECTOR(unsigned short, ushort, 4, 8)
EMULATED_VECTOR(int, int, 8, 16)
EMULATED_VECTOR(unsigned, uint, 8, 16)
EMULATED_VECTOR(float, float, 8, 16)
EMULATED_VECTOR(long long, longlong, 16, 16)
EMULATED_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATED_VECTOR(double, double, 16, 16)
struct float3 {
    float x, y, z;
};
struct int3 {
    int x, y, z;
};
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// --- loads and stores with cache hints ---

#define EMULATED_LOAD(name) \
    template <class T> \
    EMULATED_INLINE T name(const T* address) { \
        return *address; \
    }
#define EMULATED_STORE(name) \
    template <class T> \
    EMULATED_INLINE void name(T* address, T value) { \
        *address = value; \
    }
EMULATED_LOAD(__ldg)
EMULATED_LOAD(__ldca)
EMULATED_LOAD(__ldcg)
EMULATED_LOAD(__ldcs)
EMULATED_LOAD(__ldlu)
EMULATED_STORE(__stcg)
EMULATED_STORE(__stcs)
EMULATED_STORE(__stwb)
EMULATED_STORE(__stwt)

// --- numbers ---

#define EMULATED_MIN_MAX(T) \
    EMULATED_INLINE T min(T a, T b) { return b < a ? b : a; } \
    EMULATED_INLINE T max(T a, T b) { return a < b ? b : a; }
EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)
EMULATED_INLINE float min(float a, float b) { return fminf(a, b); }
EMULATED_INLINE float max(float a, float b) { return fmaxf(a, b); }
EMULATED_INLINE double min(double a, double b) { return fmin(a, b); }
EMULATED_INLINE double max(double a, double b) { return fmax(a, b); }
EMULATED_INLINE double min(float a, double b) { return fmin((double)a, b); }
EMULATED_INLINE double min(double a, float b) { return fmin(a, (double)b); }
EMULATED_INLINE double max(float a, double b) { return fmax((double)a, b); }
EMULATED_INLINE double max(double a, float b) { return fmax(a, (double)b); }
EMULATED_INLINE unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
EMULATED_INLINE unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
EMULATED_INLINE unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
EMULATED_INLINE unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }

#define EMULATED_BITS(name, To, From) \
    EMULATED_INLINE To name(From v) { return emulated::bits_as<To>(v); }
EMULATED_BITS(__float_as_uint, unsigned, float)
EMULATED_BITS(__float_as_int, int, float)
EMULATED_BITS(__uint_as_float, float, unsigned)
EMULATED_BITS(__int_as_float, float, int)
EMULATED_BITS(__double_as_longlong, long long, double)
EMULATED_BITS(__longlong_as_double, double, long long)

inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline float __expf(float v) { return expf(v); }
inline float __exp10f(float v) { return powf(10.0f, v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __log10f(float v) { return log10f(v); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __tanf(float v) { return tanf(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline void __sincosf(float v, float* s, float* c) {
    *s = sinf(v);
    *c = cosf(v);
}
inline float fdividef(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __frsqrt_rn(float v) { return 1.0f / sqrtf(v); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }
inline float normcdff(float v) { return 0.5f * erfcf(-v * 0.70710678118654752f); }

namespace emulated {

// Conversions of a GPU: what does not fit is the nearest number that does, and a NaN is 0.
template <class T>
inline T saturated(double v) {
    if (v != v) return 0;
    constexpr bool is_signed = (T)-1 < (T)0;
    const double low = is_signed ? -ldexp(1.0, sizeof(T) * 8 - 1) : 0.0;
    const double high = ldexp(1.0, sizeof(T) * 8 - (is_signed ? 1 : 0));
    if (v <= low) return (T)low;
    if (v >= high) return is_signed ? (T) ~((T)1 << (sizeof(T) * 8 - 1)) : (T)-1;
    return (T)v;
}

}  // namespace emulated

inline int __float2int_rn(float v) { return emulated::saturated<int>(rintf(v)); }
inline int __float2int_rz(float v) { return emulated::saturated<int>(truncf(v)); }
inline int __float2int_rd(float v) { return emulated::saturated<int>(floorf(v)); }
inline int __float2int_ru(float v) { return emulated::saturated<int>(ceilf(v)); }
inline unsigned __float2uint_rn(float v) { return emulated::saturated<unsigned>(rintf(v)); }
inline unsigned __float2uint_rz(float v) { return emulated::saturated<unsigned>(truncf(v)); }
inline long long __float2ll_rn(float v) { return emulated::saturated<long long>(rintf(v)); }
inline long long __float2ll_rz(float v) { return emulated::saturated<long long>(truncf(v)); }
inline int __double2int_rn(double v) { return emulated::saturated<int>(rint(v)); }
inline int __double2int_rz(double v) { return emulated::saturated<int>(trunc(v)); }
inline float __int2float_rn(int v) { return (float)v; }
inline float __uint2float_rn(unsigned v) { return (float)v; }
inline float __ll2float_rn(long long v) { return (float)v; }
inline float __double2float_rn(double v) { return (float)v; }

// --- bits ---

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i);
    return r;
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)((((unsigned long long)high << 32 | low) << (n & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = selector >> 4 * i & 0xf;
        unsigned byte = (unsigned)(both >> 8 * (s & 7)) & 0xff;
        if (s & 8) byte = byte & 0x80 ? 0xff : 0;  // the sign of that byte
        result |= byte << 8 * i;
    }
    return result;
}

// --- four bytes at once ---

inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 32; i += 8) {
        sum += (unsigned)((int)(signed char)(a >> i) * (int)(signed char)(b >> i));
    }
    return (int)sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}

#define EMULATED_BYTES(name, T, value) \
    inline unsigned name(unsigned a4, unsigned b4) { \
        unsigned result = 0; \
        for (int i = 0; i < 32; i += 8) { \
            const int a = (T)(a4 >> i), b = (T)(b4 >> i); \
            result |= ((unsigned)(value) & 0xff) << i; \
        } \
        return result; \
    }
EMULATED_BYTES(__vadd4, unsigned char, a + b)
EMULATED_BYTES(__vsub4, unsigned char, a - b)
EMULATED_BYTES(__vaddss4, signed char, min(max(a + b, -128), 127))
EMULATED_BYTES(__vsubss4, signed char, min(max(a - b, -128), 127))
EMULATED_BYTES(__vmaxs4, signed char, max(a, b))
EMULATED_BYTES(__vmins4, signed char, min(a, b))
EMULATED_BYTES(__vmaxu4, unsigned char, max(a, b))
EMULATED_BYTES(__vminu4, unsigned char, min(a, b))
EMULATED_BYTES(__vcmpeq4, unsigned char, a == b ? 0xff : 0)
EMULATED_BYTES(__vcmpne4, unsigned char, a != b ? 0xff : 0)
EMULATED_BYTES(__vcmpgtu4, unsigned char, a > b ? 0xff : 0)
EMULATED_BYTES(__vcmpgts4, signed char, a > b ? 0xff : 0)
