// Floats as integers of the same order, alone and with their index.
#pragma once
#include "common.cuh"

typedef unsigned long long u64_t;

constexpr u32_t NAN_KEY = 0xffffffffu;  // above the key of every number

// A key that grows with the value; zeros of both signs are equal.
__device__ inline u32_t ascending_key(float v) {
    if (v != v) return NAN_KEY;
    const u32_t bits = __float_as_uint(v + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A key that falls as the value grows, but for NaN.
__device__ inline u32_t descending_key(float v) { return v != v ? NAN_KEY : ~ascending_key(v); }

// Key and index: no two elements of a row are equal.
__device__ inline u64_t with_index(u32_t key, u32_t i) { return (u64_t)key << 32 | i; }
