// Elements of quantised types by tags, as types.cuh has those of plain types: load(row, i).
//
// A block holds BLOCK elements in BYTES bytes. Each is a code, a whole number from -128 to 127, times a
// scale, of which GROUP neighbours have one; types with OFFSET add a number to each group:
//
//     x[i] = scale(block, i / GROUP).d * codes(block, i / 4)[i % 4]  (+ scale(block, i / GROUP).m)
//
// which has the bits of ggml's own conversion. codes(block, i) are the four elements from 4 i on, the
// first one in the low byte: raw(block, i), less ZERO each. Blocks are written as `d f16 | qs 16 x u8`,
// with elements in the order that raw() shows. Blocks lie at multiples of ALIGN bytes.
#pragma once
#include "quants_codes.cuh"
#include "quants_indexed.cuh"

// --- blocks of 32 -----------------------------------------------------------------------------------

// d f16 | qs 16 x u8: x = d (q - 8), low nibbles first
struct q4_0 : Quantised<q4_0, 32, 18, 32, 8> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return nibbles(word(b + 2 + i % 4 * 4), i >= 4);
    }
};

// d f16 | m f16 | qs 16 x u8: x = d q + m
struct q4_1 : Quantised<q4_1, 32, 20, 32, 0, true> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), half(b + 2)}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return nibbles(word(b + 4 + i % 4 * 4), i >= 4);
    }
};

// d f16 | qh u32 | qs 16 x u8: x = d (q - 16), the top bits in qh
struct q5_0 : Quantised<q5_0, 32, 22, 32, 16> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t low = nibbles(word(b + 6 + i % 4 * 4), i >= 4);
        return low | spread_bits(word(b + 2) >> i * 4) << 4;
    }
};

// d f16 | m f16 | qh u32 | qs 16 x u8: x = d q + m
struct q5_1 : Quantised<q5_1, 32, 24, 32, 0, true> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), half(b + 2)}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const u32_t low = nibbles(word(b + 8 + i % 4 * 4), i >= 4);
        return low | spread_bits(word(b + 4) >> i * 4) << 4;
    }
};

// d f16 | qs 32 x i8: x = d q
struct q8_0 : Quantised<q8_0, 32, 34, 32> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) { return word(b + 2 + i * 4); }
};

// d f16 | qs 16 x u8: x = d IQ4[q]
struct iq4_nl : Quantised<iq4_nl, 32, 18, 32> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return looked_up<Iq4Table>(word(b + 2 + i % 4 * 4), i >= 4);
    }
};

// e u8 | qs 16 x u8: x = 2^(e - 128) FP4[q]
struct mxfp4 : Quantised<mxfp4, 32, 17, 32> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t e = b[0];  // the first two are denormal
        return {__uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return looked_up<Fp4Table>(word(b + 1 + i % 4 * 4), i >= 4);
    }
};

// --- blocks of 64 -----------------------------------------------------------------------------------

// d 4 x u8 | qs 32 x u8: 16 elements have 8 bytes, x = d / 2 FP4[q]; d has 4 bits of exponent, 3 of
// mantissa and no sign, and 0x7f is 0
struct nvfp4 : Quantised<nvfp4, 64, 36, 16> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t d = b[i];  // the bits are the middle of an f16 that is 2^8 too small
        return {d == 0x7f ? 0.0f : half_to_float((u16_t)((d & 0x7f) << 7)) * 128.0f, 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return looked_up<Fp4Table>(word(b + 4 + i / 4 * 8 + i % 2 * 4), i % 4 >= 2);
    }
};

// d f16 | qs 16 x u8: x = d (q - 1), four pairs of bits a byte
struct q2_0 : Quantised<q2_0, 64, 18, 32, 1> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) { return spread_pairs(b[2 + i]); }
};

// --- blocks of 128 ----------------------------------------------------------------------------------

// d f16 | qs 16 x u8: x = d (2 q - 1), q are bits
struct q1_0 : Quantised<q1_0, 128, 18, 32, 1> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return spread_bits(b[2 + i / 2] >> i % 2 * 4) << 1;
    }
};

// --- blocks of 256: 8 runs of 32 --------------------------------------------------------------------

// d f16 | dmin f16 | 3 words: the 6-bit scale and minimum of run i. Those of runs 0 to 3 are the low bits
// of the first two words' bytes; those of the others are nibbles of the third, below the first two's top
// bits.
__device__ inline Scale k_scale(const u8_t* b, int i) {
    const u32_t both = ((const u32_t*)b)[0];
    const u32_t first = ((const u32_t*)b)[1], second = ((const u32_t*)b)[2];
    const u32_t third = ((const u32_t*)b)[3];
    u32_t scales = first & 0x3f3f3f3fu, leasts = second & 0x3f3f3f3fu;  // of four runs
    if (i >= 4) {
        scales = (third & 0x0f0f0f0fu) | (first >> 2 & 0x30303030u);
        leasts = (third >> 4 & 0x0f0f0f0fu) | (second >> 2 & 0x30303030u);
    }
    const int at = i % 4 * 8;
    const float d = half_to_float((u16_t)both), dmin = half_to_float((u16_t)(both >> 16));
    return {d * (float)(u8_t)(scales >> at), -(dmin * (float)(u8_t)(leasts >> at))};
}

// scales 16 x u8 | qs 64 x u8 | d f16 | dmin f16: x = d (s & 15) q - dmin (s >> 4); 32 bytes of qs are
// four runs of 2 bits each
struct q2_K : Quantised<q2_K, 256, 84, 16, 0, true> {
    __device__ static Scale scale(const u8_t* b, int i) {
        return {half(b + 80) * (float)(b[i] & 15), -(half(b + 82) * (float)(b[i] >> 4))};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int run = i / 8;
        return word(b + 16 + run / 4 * 32 + i % 8 * 4) >> run % 4 * 2 & 0x03030303u;
    }
};

// hmask 32 x u8 | qs 64 x u8 | scales 12 x u8 | d f16: x = d (s - 32) (q - 4); qs as q2_K, bit `run` of
// hmask above them; 4 bits of scales in the nibbles of 8 bytes, above them the pairs of bits of 4 bytes
struct q3_K : Quantised<q3_K, 256, 110, 16, 4> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t low = b[96 + i % 8] >> i / 8 * 4 & 15;
        const u32_t high = b[104 + i % 4] >> i / 4 * 2 & 3;
        return {half(b + 108) * (float)((int)(low | high << 4) - 32), 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int run = i / 8;
        const u32_t low = word(b + 32 + run / 4 * 32 + i % 8 * 4) >> run % 4 * 2 & 0x03030303u;
        return low | (word(b + i % 8 * 4) >> run & 0x01010101u) << 2;
    }
};

// d f16 | dmin f16 | scales 12 x u8 | qs 128 x u8: x = d s q - dmin m; 32 bytes of qs are two runs
struct q4_K : Quantised<q4_K, 256, 144, 32, 0, true> {
    __device__ static Scale scale(const u8_t* b, int i) { return k_scale(b, i); }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int run = i / 8;
        return nibbles(word(b + 16 + run / 2 * 32 + i % 8 * 4), run % 2 == 1);
    }
};

// d f16 | dmin f16 | scales 12 x u8 | qh 32 x u8 | qs 128 x u8: as q4_K, the fifth bit is bit `run` of qh
struct q5_K : Quantised<q5_K, 256, 176, 32, 0, true> {
    __device__ static Scale scale(const u8_t* b, int i) { return k_scale(b, i); }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int run = i / 8;
        const u32_t low = nibbles(word(b + 48 + run / 2 * 32 + i % 8 * 4), run % 2 == 1);
        return low | (word(b + 16 + i % 8 * 4) >> run & 0x01010101u) << 4;
    }
};

// ql 128 x u8 | qh 64 x u8 | scales 16 x i8 | d f16: x = d s (q - 32); four runs have 64 bytes of ql, the
// first two in low nibbles, and 32 bytes of qh, a pair of bits each
struct q6_K : Quantised<q6_K, 256, 210, 16, 32> {
    __device__ static Scale scale(const u8_t* b, int i) {
        return {half(b + 208) * (float)(i8_t)b[192 + i], 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int four = i / 32, run = i / 8 % 4;
        const u32_t low = word(b + four * 64 + run % 2 * 32 + i % 8 * 4);
        const u32_t high = word(b + 128 + four * 32 + i % 8 * 4) >> run * 2 & 0x03030303u;
        return nibbles(low, run >= 2) | high << 4;
    }
};

// d f16 | high u16 | low 4 x u8 | qs 128 x u8: x = d (s - 32) IQ4[q]; 4 bits of the scale of run i in
// nibble i of low, 2 bits above them in high
struct iq4_xs : Quantised<iq4_xs, 256, 136, 32> {
    __device__ static Scale scale(const u8_t* b, int i) {
        const u32_t low = word(b + 4) >> i * 4 & 15, high = word(b) >> 16 >> i * 2 & 3;
        return {half(b) * (float)((int)(low | high << 4) - 32), 0.0f};
    }
    __device__ static u32_t raw(const u8_t* b, int i) {
        return looked_up<Iq4Table>(word(b + 8 + i / 8 * 16 + i % 4 * 4), i % 8 >= 4);
    }
};

// --- ternary: -d, 0, d ------------------------------------------------------------------------------

// Digit `n` of numbers of five digits of base 3, as fractions of 256: 3^n times a byte, modulo 256, is
// the fraction from that digit on.
__device__ inline u32_t digits(u32_t bytes, int n) {
    const u32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    const u32_t even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu;
    const u32_t odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00ff00ffu) | (odd * 3 & 0xff00ff00u);
}

// qs 48 x u8 | qh 4 x u8 | d f16: x = d (digit - 1); 32 bytes have a digit of 5 times 32 elements, 16
// bytes of 5 times 16, and qh of 4 times 4
struct tq1_0 : Quantised<tq1_0, 256, 54, 32, 1> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b + 52), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int at = i < 40 ? i % 8 * 4 : i < 60 ? 32 + i % 4 * 4 : 48;
        const int n = i < 40 ? i / 8 : i < 60 ? (i - 40) / 4 : i - 60;
        return digits(word(b + at), n);
    }
};

// qs 64 x u8 | d f16: x = d (q - 1); qs as q2_K
struct tq2_0 : Quantised<tq2_0, 256, 66, 32, 1> {
    __device__ static Scale scale(const u8_t* b, int i) { return {half(b + 64), 0.0f}; }
    __device__ static u32_t raw(const u8_t* b, int i) {
        const int run = i / 8;
        return word(b + run / 4 * 32 + i % 8 * 4) >> run % 4 * 2 & 0x03030303u;
    }
};
