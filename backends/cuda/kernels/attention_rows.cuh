// Rows of K and V as f32, eight elements at a time.
//
//   f32, f16, bf16
//   q8_0    d f16 | qs 32 x i8                              d * q
//   q4_0    d f16 | qs 16 x u8                              d * (q - 8)
//   q4_1    d f16 | m f16 | qs 16 x u8                      d * q + m
//   q5_0    d f16 | qh u32 | qs 16 x u8                     d * (q - 16)
//   q5_1    d f16 | m f16 | qh u32 | qs 16 x u8             d * q + m
//   iq4_nl  d f16 | qs 16 x u8                              d * the value of code q
//
// Blocks have 32 elements, and are aligned to 2 bytes. The low nibbles of qs are elements 0 to 15, the
// high ones 16 to 31; bit i of qh lies on top of the nibble of element i. Values are those of ggml's
// dequantisation: one rounding per step.
#pragma once
#include "types.cuh"

// The order of `KV_TYPES` in attention.py.
enum KvType { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0, KV_Q4_1, KV_Q5_0, KV_Q5_1, KV_IQ4_NL };

__device__ inline u32_t load_2_bytes(const char* at) { return *(const u16_t*)at; }
__device__ inline u32_t load_4_bytes(const char* at) {
    return load_2_bytes(at) | load_2_bytes(at + 2) << 16;
}
__device__ inline float load_half(const char* at) { return half_to_float(*(const u16_t*)at); }

__device__ inline float plain_value(int type, const char* row, int i) {
    if (type == KV_F32) return f32::load(row, i);
    return type == KV_F16 ? f16::load(row, i) : bf16::load(row, i);
}

// Elements i to i + 7 of a row that is aligned to 16 bytes.
__device__ inline void load_plain(int type, const char* row, int i, float (&v)[8]) {
    if (type == KV_F32) {
        const float4* from = (const float4*)(row + 4 * i);
        const float4 a = from[0], b = from[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    const uint4 from = *(const uint4*)(row + 2 * i);
    const u32_t pairs[4] = {from.x, from.y, from.z, from.w};
    for (int j = 0; j < 8; ++j) {
        const u16_t bits = (u16_t)(pairs[j / 2] >> 16 * (j % 2));
        v[j] = type == KV_F16 ? half_to_float(bits) : bf16_to_float(bits);
    }
}

__device__ inline void load_q8_0(const char* row, int i, float (&v)[8]) {
    const char* block = row + i / 32 * 34;
    const float d = load_half(block);
    const u32_t codes[2] = {load_4_bytes(block + 2 + i % 32), load_4_bytes(block + 6 + i % 32)};
    for (int j = 0; j < 8; ++j) v[j] = (i8_t)(codes[j / 4] >> 8 * (j % 4)) * d;
}

// -127 -104 -83 -65 -49 -35 -22 -10 | 1 13 25 38 53 69 89 113: the first of eight in the low byte.
__device__ inline int iq4_nl_value(int code) {
    const unsigned long long values = code < 8 ? 0xf6eaddcfbfad9881ull : 0x7159453526190d01ull;
    return (i8_t)(values >> 8 * (code % 8));
}

// The types of 4 and 5 bits.
__device__ inline void load_nibbles(int type, const char* row, int i, float (&v)[8]) {
    const bool has_min = type == KV_Q4_1 || type == KV_Q5_1;
    const bool has_high = type == KV_Q5_0 || type == KV_Q5_1;
    const int bias = type == KV_Q4_0 ? 8 : type == KV_Q5_0 ? 16 : 0;
    const int head_bytes = 2 + 2 * has_min + 4 * has_high;
    const char* block = row + i / 32 * (head_bytes + 16);
    const float d = load_half(block), m = has_min ? load_half(block + 2) : 0.0f;
    const u32_t high = has_high ? load_4_bytes(block + head_bytes - 4) >> i % 32 : 0;
    const char* qs = block + head_bytes + i % 16;
    const int shift = i % 32 < 16 ? 0 : 4;
    const u32_t codes[2] = {load_4_bytes(qs) >> shift, load_4_bytes(qs + 4) >> shift};
    for (int j = 0; j < 8; ++j) {
        const int code = codes[j / 4] >> 8 * (j % 4) & 15;
        const int q = (code | (high >> j & 1) << 4) - bias;
        v[j] = (type == KV_IQ4_NL ? iq4_nl_value(code) : q) * d;
        if (has_min) v[j] += m;
    }
}

// Elements i to i + 7 of a row of n, i a multiple of 8, 0 for those past its end; `vectors` says whether
// rows are aligned to 16 bytes.
__device__ inline void load_8(int type, const char* row, int i, int n, bool vectors, float (&v)[8]) {
    if (type == KV_Q8_0) {
        load_q8_0(row, i, v);
    } else if (type > KV_Q8_0) {
        load_nibbles(type, row, i, v);
    } else if (vectors && i + 8 <= n) {
        load_plain(type, row, i, v);
    } else {
        for (int j = 0; j < 8; ++j) v[j] = i + j < n ? plain_value(type, row, i + j) : 0.0f;
    }
}
