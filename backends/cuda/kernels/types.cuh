// Elements of plain types by tags, which the defines of a form name: load(row, i), store(row, i, v).
//
// `Value` is what an element is computed with: float for floats, else its own integer type.
#pragma once
#include "common.cuh"

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
        return __half2float(((const __half*)row)[i]);
    }
    __device__ static void store(char* row, i64_t i, float v) {
        ((__half*)row)[i] = __float2half_rn(v);
    }
};

struct bf16 {
    typedef float Value;
    static constexpr int SIZE = 2;
    __device__ static float load(const char* row, i64_t i) {
        return __bfloat162float(((const __nv_bfloat16*)row)[i]);
    }
    __device__ static void store(char* row, i64_t i, float v) {
        ((__nv_bfloat16*)row)[i] = __float2bfloat16_rn(v);
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
