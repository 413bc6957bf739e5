// Quantised types whose indices stand for 4 or 8 elements of a published grid. See quants.cuh.
#pragma once
#include "quants_codes.cuh"
#include "quants_grids.cuh"

// Numbers of 2 bits stand for 8, 25, 43.
__device__ inline u32_t iq2_codes(u32_t entry, int i) {
    const u32_t q = spread_pairs(entry >> i % 2 * 8 & 255);
    return 0x08080808u + q * 17 + (q >> 1 & 0x01010101u);
}

// d f16 | 8 runs: (indices 4 x u8 | signs 4 x 7 bits, scale 4 bits): x = d (s + 1/2) / 4 * code
struct iq2_xxs : Quantised<iq2_xxs, 256, 66, 32> {
    __device__ static Scale scale(const u8_t* b, int i) {
        return {half(b) * (0.5f + (float)(word(b + 6 + i * 8) >> 28)) * 0.25f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u8_t* run = b + 2 + i / 8 * 8;
        const int eight = i % 8 / 2;
        const u32_t signs = eight_signs(word(run + 4) >> eight * 7 & 127);
        return with_signs(iq2_codes(IQ2_XXS_GRID[run[eight]], i), signs >> i % 2 * 4);
    }
};

// d f16 | qs 32 x u16: index 9 bits, signs 7 | scales 16 x 4 bits
struct iq2_xs : Quantised<iq2_xs, 256, 74, 16> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t s = b[66 + i / 2] >> i % 2 * 4 & 15;
        return {half(b) * (0.5f + (float)s) * 0.25f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t q = ((const u16_t*)(b + 2))[i / 2];
        return with_signs(iq2_codes(IQ2_XS_GRID[q & 511], i), eight_signs(q >> 9) >> i % 2 * 4);
    }
};

// d f16 | qs 32 x u8 | signs 32 x u8 | qh 32 x 2 bits, the indices' top ones | scales 16 x 4 bits
struct iq2_s : Quantised<iq2_s, 256, 82, 16> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t s = b[74 + i / 2] >> i % 2 * 4 & 15;
        return {half(b) * (0.5f + (float)s) * 0.25f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int eight = i / 2;
        const u32_t index = b[2 + eight] | (b[66 + eight / 4] >> eight % 4 * 2 & 3) << 8;
        return with_signs(iq2_codes(IQ2_S_GRID[index], i), b[34 + eight] >> i % 2 * 4);
    }
};

// d f16 | qs 64 x u8 | 8 x (signs 4 x 7 bits, scale 4 bits): x = d (s + 1/2) / 2 * code; numbers of 3 bits
// stand for 4, 12, 20, 28, 36, 44, 52, 62
struct iq3_xxs : Quantised<iq3_xxs, 256, 98, 32> {
    __device__ static Scale scale(const u8_t* b, int i) {
        return {half(b) * (0.5f + (float)(word(b + 66 + i * 4) >> 28)) * 0.5f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t q = spread_nibbles(IQ3_XXS_GRID[b[2 + i]]);
        const u32_t last = q + 0x01010101u >> 3 & 0x01010101u;  // 2 more
        const u32_t signs = eight_signs(word(b + 66 + i / 8 * 4) >> i % 8 / 2 * 7 & 127);
        return with_signs(0x04040404u + q * 8 + last * 2, signs >> i % 2 * 4);
    }
};

// d f16 | qs 64 x u8 | qh 64 bits, the indices' top ones | signs 32 x u8 | scales 8 x 4 bits:
// x = d (2 s + 1) (2 q + 1)
struct iq3_s : Quantised<iq3_s, 256, 110, 32> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t s = b[106 + i / 2] >> i % 2 * 4 & 15;
        return {half(b) * (float)(1 + 2 * s), 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t index = b[2 + i] | (b[66 + i / 8] >> i % 8 & 1) << 8;
        const u32_t odd = spread_nibbles(IQ3_S_GRID[index]) * 2 + 0x01010101u;
        return with_signs(odd, b[74 + i / 2] >> i % 2 * 4);
    }
};

// Numbers of 2 bits stand for -1, 0, 1, and an eighth is added or subtracted: codes are 8 times that.
__device__ inline u32_t iq1_codes(u32_t entry, int i, bool minus) {
    const u32_t q = spread_pairs(entry >> i % 2 * 8 & 255);
    return bytes_minus(q * 8, minus ? 0x09090909u : 0x07070707u);
}

// d f16 | qs 32 x u8 | qh 8 x u16: top bits of the indices 4 x 3, scale 3, sign of the eighth
struct iq1_s : Quantised<iq1_s, 256, 50, 32> {
    __device__ static u32_t high(const u8_t* b, int i) { return ((const u16_t*)(b + 34))[i]; }
    __device__ static Scale scale(const u8_t* b, int i) {
        return {half(b) * (float)(2 * (high(b, i) >> 12 & 7) + 1) * 0.125f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t qh = high(b, i / 8);
        const u32_t index = b[2 + i / 2] | (qh >> i % 8 / 2 * 3 & 7) << 8;
        return iq1_codes(IQ1_GRID[index], i, qh >> 15);
    }
};

// qs 32 x u8 | qh 32 x (3 top bits of the index, sign of the eighth) | scales 4 x u16: 4 x 3 bits, and 4
// bits of d, an f16
struct iq1_m : Quantised<iq1_m, 256, 56, 16> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t front = word(b + 48), back = word(b + 52);
        const u32_t d = (front >> 12 & 0xf) | (front >> 24 & 0xf0) | (back >> 4 & 0xf00) |
                        (back >> 16 & 0xf000);
        const u32_t s = (i < 8 ? front : back) >> (i / 4 % 2 * 16 + i % 4 * 3) & 7;
        return {half_to_float((u16_t)d) * (float)(2 * s + 1) * 0.125f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t qh = b[32 + i / 4] >> i / 2 % 2 * 4;
        const u32_t index = b[i / 2] | (qh & 7) << 8;
        return iq1_codes(IQ1_GRID[index], i, qh >> 3 & 1);
    }
};
