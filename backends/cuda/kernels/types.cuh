// Elements of plain types by tags, which the defines of a form name: load(row, i), store(row, i, v).
//
// `Value` is what an element is computed with: float for floats, else its own integer type. f16 and
// bf16 are their bits; conversions are instructions, so that no header of CUDA is needed.
#pragma once
#include "common.cuh"

// GGUF's numbers of types, for kernels that read several.
constexpr int TYPE_F32 = 0;
constexpr int TYPE_F16 = 1;
constexpr int TYPE_I32 = 26;
constexpr int TYPE_BF16 = 30;

#ifdef GGMLPY_EMULATED
__device__ inline float half_to_float(u16_t bits) {
    _Float16 h;
    memcpy(&h, &bits, 2);
    return (float)h;
}
__device__ inline u16_t float_to_half(float v) {
    const _Float16 h = (_Float16)v;
    u16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
#else
__device__ inline float half_to_float(u16_t bits) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}
__device__ inline u16_t float_to_half(float v) {
    u16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
#endif

__device__ inline float bf16_to_float(u16_t bits) { return __uint_as_float((u32_t)bits << 16); }

// To the nearest, ties to even; a NaN stays one.
__device__ inline u16_t float_to_bf16(float v) {
    const u32_t bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16_t)((bits >> 16) | 0x40u);
    return (u16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct f32 {
    typedef float Value;
    static constexpr int SIZE = 4;
    __device__ static float load(const char* row, i64_t i) { return ((const float*)row)[i]; }
    __device__ static void store(char* row, i64_t i, float v) { ((float*)row)[i] = v; }
};

struct f16 {
    typedef float Value;
    static constexpr int SIZE = 2;
    __device__ static float load(const char* row, i64_t i) {
        return half_to_float(((const u16_t*)row)[i]);
    }
    __device__ static void store(char* row, i64_t i, float v) {
        ((u16_t*)row)[i] = float_to_half(v);
    }
};

struct bf16 {
    typedef float Value;
    static constexpr int SIZE = 2;
    __device__ static float load(const char* row, i64_t i) {
        return bf16_to_float(((const u16_t*)row)[i]);
    }
    __device__ static void store(char* row, i64_t i, float v) {
        ((u16_t*)row)[i] = float_to_bf16(v);
    }
};

struct f64 {
    typedef double Value;
    static constexpr int SIZE = 8;
    __device__ static double load(const char* row, i64_t i) { return ((const double*)row)[i]; }
    __device__ static void store(char* row, i64_t i, double v) { ((double*)row)[i] = v; }
};

struct i32 {
    typedef int Value;
    static constexpr int SIZE = 4;
    __device__ static int load(const char* row, i64_t i) { return ((const int*)row)[i]; }
    __device__ static void store(char* row, i64_t i, int v) { ((int*)row)[i] = v; }
};

struct i64 {
    typedef i64_t Value;
    static constexpr int SIZE = 8;
    __device__ static i64_t load(const char* row, i64_t i) { return ((const i64_t*)row)[i]; }
    __device__ static void store(char* row, i64_t i, i64_t v) { ((i64_t*)row)[i] = v; }
};

struct i16 {
    typedef short Value;
    static constexpr int SIZE = 2;
    __device__ static short load(const char* row, i64_t i) { return ((const short*)row)[i]; }
    __device__ static void store(char* row, i64_t i, short v) { ((short*)row)[i] = v; }
};

struct i8 {
    typedef i8_t Value;
    static constexpr int SIZE = 1;
    __device__ static i8_t load(const char* row, i64_t i) { return ((const i8_t*)row)[i]; }
    __device__ static void store(char* row, i64_t i, i8_t v) { ((i8_t*)row)[i] = v; }
};
