// Blocks of 32 floats to the quantised types that a cache may have. A warp makes a block: lane i has
// number i.
//
// The bytes are those of ggml's reference quantisers, and of this package's on the CPU. In iq4_nl blocks
// of zeros, whose codes ggml does not define, have the code of the least value. Blocks with a NaN or an
// infinity have no defined result.
#pragma once
#include "types.cuh"

constexpr int QUANTIZED_BLOCK = 32;

// GGUF's numbers of types.
constexpr int TYPE_Q4_0 = 2;
constexpr int TYPE_Q4_1 = 3;
constexpr int TYPE_Q5_0 = 6;
constexpr int TYPE_Q5_1 = 7;
constexpr int TYPE_Q8_0 = 8;
constexpr int TYPE_IQ4_NL = 20;

__device__ inline int block_bytes(int type) {
    switch (type) {
        case TYPE_Q4_1: return 20;
        case TYPE_Q5_0: return 22;
        case TYPE_Q5_1: return 24;
        case TYPE_Q8_0: return 34;
        default: return 18;  // q4_0, iq4_nl
    }
}

// --- what blocks share ----------------------------------------------------------------------------

// Truncates. What an int cannot hold is the least one, as on the CPU: the scale of a block of denormal
// numbers may be infinite.
__device__ inline int truncated(float v) {
    return fabsf(v) < 2147483648.0f ? (int)v : (int)0x80000000u;
}

// (x - minus) * scale + shift as a code, at most `most`.
__device__ inline u32_t code_of(float x, float minus, float scale, float shift, int most) {
    return (u32_t)min(truncated((x - minus) * scale + shift), most);
}

__device__ inline float inverse(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

// The first number with the largest magnitude, with its sign.
__device__ inline float farthest(float x) {
    const u32_t places = __ballot_sync(ALL_LANES, fabsf(x) == warp_max(fabsf(x)));
    return __shfl_sync(ALL_LANES, x, __ffs(places) - 1);
}

// The sum of all lanes, added one after another.
__device__ inline float sum_in_order(float v) {
    float sum = 0.0f;
    for (int lane = 0; lane < 32; ++lane) sum += __shfl_sync(ALL_LANES, v, lane);
    return sum;
}

// Blocks lie at even addresses: they are written by 16 bits.

__device__ inline void store_header(u16_t* y, int i, u16_t bits) {
    if (threadIdx.x % 32 == 0) y[i] = bits;
}

// The low bytes of the first n lanes.
__device__ inline void store_bytes(u16_t* y, u32_t byte, int n) {
    const int lane = threadIdx.x % 32;
    const u32_t next = __shfl_down_sync(ALL_LANES, byte, 1);
    if (lane < n && lane % 2 == 0) y[lane / 2] = (u16_t)((byte & 255) | next << 8);
}

// 16 bytes: codes of numbers 0 to 15 in the low nibbles, of the others in the high ones.
__device__ inline void store_nibbles(u16_t* y, u32_t code) {
    const u32_t high = __shfl_down_sync(ALL_LANES, code, 16);
    store_bytes(y, (code & 15) | (high & 15) << 4, 16);
}

// 32 codes of 5 bits: qh u32, their top bits | qs 16 x u8, the others.
__device__ inline void store_fives(u16_t* y, u32_t code) {
    const u32_t top = __ballot_sync(ALL_LANES, code >> 4 & 1);
    store_header(y, 0, (u16_t)top);
    store_header(y, 1, (u16_t)(top >> 16));
    store_nibbles(y + 2, code);
}

// --- a function for each type ---------------------------------------------------------------------

// d f16 | qs 16 x u8: x = d (q - 8), the farthest at q = 0
__device__ inline void quantize_q4_0(float x, u16_t* y) {
    const float d = farthest(x) / -8.0f;
    store_header(y, 0, float_to_half(d));
    store_nibbles(y + 1, code_of(x, 0.0f, inverse(d), 8.5f, 15));
}

// d f16 | qh u32 | qs 16 x u8: x = d (q - 16), the farthest at q = 0
__device__ inline void quantize_q5_0(float x, u16_t* y) {
    const float d = farthest(x) / -16.0f;
    store_header(y, 0, float_to_half(d));
    store_fives(y + 1, code_of(x, 0.0f, inverse(d), 16.5f, 31));
}

// d f16 | m f16, and the codes of x = d q + m: q from 0 to `most`
__device__ inline u32_t scale_from_least(float x, u16_t* y, int most) {
    const float least = -warp_max(-x);
    const float d = (warp_max(x) - least) / most;
    store_header(y, 0, float_to_half(d));
    store_header(y, 1, float_to_half(least));
    return code_of(x, least, inverse(d), 0.5f, most);
}

// d f16 | m f16 | qs 16 x u8
__device__ inline void quantize_q4_1(float x, u16_t* y) {
    store_nibbles(y + 2, scale_from_least(x, y, 15));
}

// d f16 | m f16 | qh u32 | qs 16 x u8
__device__ inline void quantize_q5_1(float x, u16_t* y) {
    store_fives(y + 2, scale_from_least(x, y, 31));
}

// d f16 | qs 32 x i8: x = d q, the farthest at 127 or -127
__device__ inline void quantize_q8_0(float x, u16_t* y) {
    const float d = warp_max(fabsf(x)) / 127.0f;
    store_header(y, 0, float_to_half(d));
    store_bytes(y + 1, (u32_t)truncated(roundf(x * inverse(d))), 32);
}

__device__ const i8_t IQ4_NL_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};

// The code of the value of iq4_nl that is nearest, of two as near the larger one.
__device__ inline u32_t nearest_iq4(float x) {
    constexpr float MIDDLES[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f,
                                   7.0f,    19.0f,  31.5f,  45.5f,  61.0f,  79.0f,  101.0f};
    u32_t code = 15;
#pragma unroll
    for (int i = 0; i < 15; ++i) code -= x < MIDDLES[i];
    return code;
}

// d f16 | qs 16 x u8: codes of x / s for the s that makes the farthest x -127. d has the least error for
// these codes, each weighted by its x^2: sum(w q x) / sum(w q^2), w = x^2, both sums in order.
__device__ inline void quantize_iq4_nl(float x, u16_t* y) {
    const float far = farthest(x);
    const bool is_zero = !(fabsf(far) >= 1e-15f);
    const u32_t code = is_zero ? 8 : nearest_iq4(x * (1.0f / (far / -127.0f)));
    const float q = IQ4_NL_VALUES[code];
    const float wq = x * x * q;
    const float wqx = sum_in_order(wq * x), wqq = sum_in_order(wq * q);
    store_header(y, 0, is_zero ? 0 : float_to_half(wqx / wqq));
    store_nibbles(y + 1, code);
}

// A block of a type by its number, which is uniform in a launch.
__device__ inline void quantize_block(int type, float x, char* y) {
    u16_t* at = (u16_t*)y;
    switch (type) {
        case TYPE_Q4_0: quantize_q4_0(x, at); break;
        case TYPE_Q4_1: quantize_q4_1(x, at); break;
        case TYPE_Q5_0: quantize_q5_0(x, at); break;
        case TYPE_Q5_1: quantize_q5_1(x, at); break;
        case TYPE_Q8_0: quantize_q8_0(x, at); break;
        default: quantize_iq4_nl(x, at);
    }
}
