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
#include "quants_grids.cuh"
#include "types.cuh"

struct Scale {
    float d;
    float m;  // 0 without OFFSET
};

// --- four codes at once -----------------------------------------------------------------------------

// Bytes below 128, less a number each.
__device__ inline u32_t bytes_minus(u32_t bytes, u32_t less) {
    return ((bytes | 0x80808080u) - less) ^ 0x80808080u;
}

// The low or high nibbles of four bytes.
__device__ inline u32_t nibbles(u32_t bytes, bool high) {
    return (high ? bytes >> 4 : bytes) & 0x0f0f0f0fu;
}

// Bits 0 to 3, each in the lowest bit of a byte.
__device__ inline u32_t spread_bits(u32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Four numbers of 2 bits, each in a byte.
__device__ inline u32_t spread_pairs(u32_t pairs) {
    pairs = (pairs | pairs << 12) & 0x000f000fu;
    return (pairs | pairs << 6) & 0x03030303u;
}

// Four numbers of 4 bits, each in a byte.
__device__ inline u32_t spread_nibbles(u32_t four) {
    four = (four | four << 8) & 0x00ff00ffu;
    return (four | four << 4) & 0x0f0f0f0fu;
}

// Bytes from 1 to 127; those whose bit of `signs` is set are negated.
__device__ inline u32_t with_signs(u32_t bytes, u32_t signs) {
    const u32_t ones = spread_bits(signs);
    return (bytes ^ ones * 255) + ones;
}

// Signs of 8 elements of which 7 are stored: there is an even number of them.
__device__ inline u32_t eight_signs(u32_t seven) { return seven | (u32_t)(__popc(seven) & 1) << 7; }

// What the nibbles of four bytes stand for in a table of 16 bytes. The eight entries are found in the
// order of the nibbles, which is low, high of each byte.
template <class Table>
__device__ inline u32_t looked_up(u32_t bytes, bool high) {
    const u32_t within = bytes & 0x77777777u;                        // eight entries
    const u32_t of_half = (bytes >> 1 & 0x44444444u) | 0x32103210u;  // 4 more in the upper half
    const u32_t front = __byte_perm(
        __byte_perm(Table::AT0, Table::AT4, within), __byte_perm(Table::AT8, Table::AT12, within),
        of_half & 0xffffu
    );
    const u32_t back = __byte_perm(
        __byte_perm(Table::AT0, Table::AT4, within >> 16),
        __byte_perm(Table::AT8, Table::AT12, within >> 16), of_half >> 16
    );
    return __byte_perm(front, back, high ? 0x7531 : 0x6420);
}

// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
struct Iq4Table {
    static constexpr u32_t AT0 = 0xbfad9881u, AT4 = 0xf6eaddcfu;
    static constexpr u32_t AT8 = 0x26190d01u, AT12 = 0x71594535u;
};

// Twice the numbers of 1 bit sign, 2 bits exponent, 1 bit mantissa: 0, 1, 2, 3, 4, 6, 8, 12 and -
struct Fp4Table {
    static constexpr u32_t AT0 = 0x03020100u, AT4 = 0x0c080604u;
    static constexpr u32_t AT8 = 0xfdfeff00u, AT12 = 0xf4f8fafcu;
};

// --- bytes at any address ---------------------------------------------------------------------------

// Whether memory is shared, which the compiler knows. Words may be read there that blocks only end in.
__device__ inline bool is_shared(const void* at) {
#ifdef GGMLPY_EMULATED
    const size_t from_first = (size_t)at - (size_t)emulated_dynamic_shared();
    return from_first < 227 << 10;
#else
    return __isShared(at);
#endif
}

// Four bytes, of the words that have any of them.
__device__ inline u32_t unaligned_word(const u8_t* at) {
    const int behind = (int)(size_t)at & 3;
    const u32_t low = *(const u32_t*)(at - behind), high = *(const u32_t*)(at + (-behind & 3));
    return __funnelshift_r(low, high, behind * 8);
}

// --- what types share -------------------------------------------------------------------------------

template <class Q, int N, int N_BYTES, int SIZE, int CODE_OF_0 = 0, bool HAS_OFFSET = false>
struct Quantised {
    typedef float Value;
    static constexpr int BLOCK = N;
    static constexpr int BYTES = N_BYTES;
    static constexpr int GROUP = SIZE;
    static constexpr int ZERO = CODE_OF_0;
    static constexpr bool OFFSET = HAS_OFFSET;
    static constexpr int ALIGN = N_BYTES % 4 == 0 ? 4 : N_BYTES % 2 == 0 ? 2 : 1;

    __device__ static float load(const char* row, i64_t i) {
        const u8_t* block = (const u8_t*)row + i / BLOCK * BYTES;
        const int at = (int)(i % BLOCK);
        const Scale scale = Q::scale(block, at / GROUP);
        const float code = (float)(i8_t)(codes(block, at / 4) >> at % 4 * 8);
        return OFFSET ? scale.d * code + scale.m : scale.d * code;
    }

    __device__ static u32_t codes(const u8_t* block, int i) {
        const u32_t raw = Q::raw(block, i);
        return ZERO == 0 ? raw : bytes_minus(raw, ZERO * 0x01010101u);
    }

    // Elements i to i + 3, i a multiple of 4: they have one scale, and their codes are one word.
    __device__ static void load_four(const char* row, i64_t i, float (&v)[4]) {
        const u8_t* block = (const u8_t*)row + i / BLOCK * BYTES;
        const int at = (int)(i % BLOCK);
        const Scale scale = Q::scale(block, at / GROUP);
        const u32_t codes = Q::codes(block, at / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float code = (float)(i8_t)(codes >> j * 8);
            v[j] = OFFSET ? scale.d * code + scale.m : scale.d * code;
        }
    }

    __device__ static u32_t word(const u8_t* at) {
        if (ALIGN == 4) return *(const u32_t*)at;
        if (ALIGN == 2) return ((const u16_t*)at)[0] | (u32_t)((const u16_t*)at)[1] << 16;
        if (is_shared(at)) return unaligned_word(at);
        return at[0] | (u32_t)at[1] << 8 | (u32_t)at[2] << 16 | (u32_t)at[3] << 24;
    }

    __device__ static float half(const u8_t* at) { return half_to_float(*(const u16_t*)at); }
};

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

// --- grids: an index stands for 8 or 4 elements -----------------------------------------------------

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
